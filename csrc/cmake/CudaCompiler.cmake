# Looks for a CUDA compiler and reports it. No source of this version is CUDA, so the language is not enabled:
# HPCAI500_CUDA=ON only makes a missing compiler an error now instead of when the first kernel arrives.
set(HPCAI500_CUDA_COMPILER "")
set(hpcai500_cuda_summary "not looked for (HPCAI500_CUDA=OFF)")
if(NOT HPCAI500_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(HPCAI500_CUDA_COMPILER ${CMAKE_CUDA_COMPILER})
    set(hpcai500_cuda_summary "${CMAKE_CUDA_COMPILER} (found; nothing to compile with it yet)")
  elseif(HPCAI500_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HPCAI500_CUDA=ON, but no CUDA compiler was found. Put nvcc on PATH, set CUDACXX to it, "
                        "or use HPCAI500_CUDA=AUTO.")
  else()
    set(hpcai500_cuda_summary "none")
  endif()
endif()
