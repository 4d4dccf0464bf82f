# libdeflate as libdeflate::libdeflate: inflates a chunk of a climate year in about half of zlib's time.
set(hpcai500_libdeflate_hint
    "Install libdeflate's headers: `apt-get install libdeflate-dev` (Debian, Ubuntu), `dnf install "
    "libdeflate-devel` (Fedora, RHEL), or set CMAKE_PREFIX_PATH to where it is")
string(CONCAT hpcai500_libdeflate_hint ${hpcai500_libdeflate_hint})

# Its own CMake package is missing where a distribution built it by make (Debian 12).
find_path(hpcai500_libdeflate_include libdeflate.h)
find_library(hpcai500_libdeflate_library deflate)
if(NOT hpcai500_libdeflate_include OR NOT hpcai500_libdeflate_library)
  message(FATAL_ERROR "libdeflate was not found. ${hpcai500_libdeflate_hint}.")
endif()
add_library(libdeflate::libdeflate UNKNOWN IMPORTED)
set_target_properties(libdeflate::libdeflate PROPERTIES
  IMPORTED_LOCATION ${hpcai500_libdeflate_library}
  INTERFACE_INCLUDE_DIRECTORIES ${hpcai500_libdeflate_include})

file(STRINGS ${hpcai500_libdeflate_include}/libdeflate.h version_line REGEX "#define LIBDEFLATE_VERSION_STRING")
set(hpcai500_libdeflate_version unknown)
if(version_line MATCHES "\"([0-9.]+)\"")
  set(hpcai500_libdeflate_version ${CMAKE_MATCH_1})
endif()
