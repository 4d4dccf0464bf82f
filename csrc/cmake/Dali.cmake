# Looks for NVIDIA's DALI, which our operators are compiled against (HPCAI500_DALI: AUTO, ON or OFF). Its symbols belong
# to one exact version, so it is the one that the Python of this build would import.
set(HPCAI500_DALI AUTO CACHE STRING "Build the operators for DALI: AUTO, ON (DALI must be installed) or OFF")
set_property(CACHE HPCAI500_DALI PROPERTY STRINGS AUTO ON OFF)

# DALI is not imported: that would load half a gigabyte of libraries.
set(hpcai500_ask_for_dali "
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
try:
    spec = find_spec('nvidia.dali')
except ModuleNotFoundError:
    spec = None
if spec is not None:
    folder = Path(spec.origin).parent
    names = {name for name in packages_distributions().get('nvidia', ()) if name.startswith('nvidia-dali-')}
    print(folder, folder.parent / 'cu13/include', *{version(name) for name in names}, sep=';', end='')
")

# Sets HPCAI500_DALI_VERSION, _FOLDER and _INCLUDES in the caller, or `reason` where something is missing.
function(hpcai500_find_dali reason)
  find_package(Python 3.11 QUIET COMPONENTS Interpreter)
  execute_process(COMMAND ${Python_EXECUTABLE} -I -c "${hpcai500_ask_for_dali}" OUTPUT_VARIABLE found RESULT_VARIABLE status
                  ERROR_VARIABLE complaint)
  if(NOT status EQUAL 0)
    set(${reason} "${Python_EXECUTABLE} could not be asked for it: ${complaint}" PARENT_SCOPE)
    return()
  endif()
  list(LENGTH found parts)
  if(NOT parts EQUAL 3)
    set(${reason} "none in ${Python_EXECUTABLE}" PARENT_SCOPE)
    return()
  endif()
  list(GET found 0 folder)
  list(GET found 1 wheel_headers)
  list(GET found 2 version)
  # DALI's headers include CUDA's, also for operators that run on a CPU: of NVIDIA's wheels, which are of DALI's own CUDA, or
  # of the toolkit. Those of CUDA 13 have a folder of their own for what CCCL shares.
  foreach(header cuda_runtime.h crt/host_config.h nv/target)
    unset(hpcai500_header CACHE)
    find_path(hpcai500_header ${header} NO_DEFAULT_PATH
              PATHS ${wheel_headers} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} $ENV{CUDA_HOME}/include
                    $ENV{CUDA_PATH}/include /usr/local/cuda/include
              PATH_SUFFIXES . cccl)
    if(NOT hpcai500_header)
      set(${reason} "${version} without our operators: there is no ${header} (CUDA toolkit, or the extra `dali-build`)"
          PARENT_SCOPE)
      return()
    endif()
    list(APPEND cuda_headers ${hpcai500_header})
  endforeach()
  list(REMOVE_DUPLICATES cuda_headers)
  set(HPCAI500_DALI_VERSION ${version} PARENT_SCOPE)
  set(HPCAI500_DALI_FOLDER ${folder} PARENT_SCOPE)
  set(HPCAI500_DALI_INCLUDES ${folder}/include ${cuda_headers} PARENT_SCOPE)
endfunction()

# The operators are loaded from where the module _core lies: without that, AUTO does not look.
if(HPCAI500_DALI STREQUAL "AUTO" AND NOT HPCAI500_PYTHON)
  set(hpcai500_dali_summary "not looked for (HPCAI500_PYTHON=OFF)")
elseif(HPCAI500_DALI STREQUAL "OFF")
  set(hpcai500_dali_summary "not looked for (HPCAI500_DALI=OFF)")
else()
  set(hpcai500_dali_missing "")
  hpcai500_find_dali(hpcai500_dali_missing)
  if(HPCAI500_DALI_VERSION)
    set(hpcai500_dali_summary "${HPCAI500_DALI_VERSION}")
  elseif(HPCAI500_DALI STREQUAL "ON")
    message(FATAL_ERROR "HPCAI500_DALI=ON, but DALI: ${hpcai500_dali_missing}. Install it with `pip install "
                        "nvidia-dali-cuda130`, or use HPCAI500_DALI=AUTO.")
  else()
    set(hpcai500_dali_summary "${hpcai500_dali_missing}")
  endif()
endif()
