# Compilers by way of ccache, where it is installed and no other launcher was asked for. Paths are told relative to the
# project, so that a clone in another folder finds what the first one compiled; an object from there names that folder in its
# debugging information.
find_program(HPCAI500_CCACHE ccache)
if(HPCAI500_CCACHE)
  set(hpcai500_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      ${HPCAI500_CCACHE})
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER AND NOT DEFINED ENV{CMAKE_${language}_COMPILER_LAUNCHER})
      set(CMAKE_${language}_COMPILER_LAUNCHER ${hpcai500_launcher})
    endif()
  endforeach()
endif()
