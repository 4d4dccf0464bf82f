# Enables the CUDA language where there is a compiler for it (HPCAI500_CUDA: AUTO, ON or OFF). What it makes needs
# no driver to be imported: the runtime is linked statically, and finds the driver when it is first asked.
set(HPCAI500_CUDA_ARCHITECTURES "" CACHE STRING "CUDA architectures, as for CMAKE_CUDA_ARCHITECTURES; empty: a list that fits")

# Real code for each generation that the compiler knows and sites have, and PTX of the newest for what comes later. Code
# for X.0 also runs on X.1 and above: 80 on A40 and L40S (86, 89), 100 on B300 (103), 120 on GB10 (121); our kernels wait
# for memory, and gain nothing from code of their own there. 70 is V100, where the compiler is older than CUDA 13. What
# has the memory of a board computer (87, 110) is no site's.
# A build in place is for whoever changes the code, here: real code for the devices of this machine, so that what is
# measured and tested is what a wheel has, and PTX of the oldest, which runs everywhere after the driver's compilation at
# first use. That takes a fraction of the time.
function(hpcai500_cuda_devices_here known result)
  set(here "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
    foreach(capability ${capabilities})
      string(REPLACE "." "" architecture ${capability})
      if(known MATCHES "compute_${architecture}[ \n]")
        list(APPEND here ${architecture}-real)
      endif()
    endforeach()
    list(REMOVE_DUPLICATES here)
  endif()
  set(${result} ${here} PARENT_SCOPE)
endfunction()

function(hpcai500_cuda_architecture_list result)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known RESULT_VARIABLE status ERROR_QUIET)
  set(found "")
  foreach(architecture 70 75 80 90 100 120)
    if(known MATCHES "compute_${architecture}[ \n]")
      list(APPEND found ${architecture})
    endif()
  endforeach()
  if(NOT found)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} --list-gpu-arch names none of the architectures that we compile for "
                        "(sm_70 to sm_120), exit code ${status}. Name them: -DHPCAI500_CUDA_ARCHITECTURES=..., or "
                        "build without CUDA: -DHPCAI500_CUDA=OFF.")
  endif()
  list(GET found 0 oldest)
  list(GET found -1 newest)
  if(SKBUILD_STATE STREQUAL "editable")
    hpcai500_cuda_devices_here("${known}" here)
    set(${result} ${here} ${oldest}-virtual PARENT_SCOPE)
  else()
    list(TRANSFORM found APPEND "-real")
    set(${result} ${found} ${newest}-virtual PARENT_SCOPE)
  endif()
endfunction()

# C++20, in which the kernels are written. From 12.1 on a bucket may also have more than 192 tensors.
set(hpcai500_cuda_least 12.0)

# Empties CMAKE_CUDA_COMPILER, and says why in `reason`, if it is older than that. Asked before the language is enabled,
# which could not be undone.
function(hpcai500_refuse_old_cuda reason)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_LESS hpcai500_cuda_least)
    set(${reason} "${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_MATCH_1}, and ${hpcai500_cuda_least} is the least" PARENT_SCOPE)
    set(CMAKE_CUDA_COMPILER "" PARENT_SCOPE)
  endif()
endfunction()

set(HPCAI500_CUDA_COMPILER "")
set(hpcai500_cuda_summary "not looked for (HPCAI500_CUDA=OFF)")
if(NOT HPCAI500_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  set(hpcai500_cuda_missing "none")
  if(CMAKE_CUDA_COMPILER)
    hpcai500_refuse_old_cuda(hpcai500_cuda_missing)
  endif()
  if(CMAKE_CUDA_COMPILER)
    if(HPCAI500_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES ${HPCAI500_CUDA_ARCHITECTURES})
    elseif(DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES $ENV{CUDAARCHS})
    else()
      hpcai500_cuda_architecture_list(CMAKE_CUDA_ARCHITECTURES)
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(HPCAI500_CUDA_COMPILER ${CMAKE_CUDA_COMPILER})
    set(hpcai500_cuda_summary "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(HPCAI500_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HPCAI500_CUDA=ON, but no CUDA compiler was found that works with ${CMAKE_CXX_COMPILER}: "
                        "${hpcai500_cuda_missing}. Put nvcc of CUDA ${hpcai500_cuda_least} or later on PATH, set CUDACXX to "
                        "it, name another host compiler with CUDAHOSTCXX, or use HPCAI500_CUDA=AUTO.")
  else()
    set(hpcai500_cuda_summary "${hpcai500_cuda_missing}")
  endif()
endif()
