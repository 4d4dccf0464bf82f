# libjpeg-turbo as JPEG::JPEG: partial decoding and RGBX output exist in no other libjpeg.
set(hpcai500_libjpeg_hint
    "Install libjpeg-turbo's headers: `apt-get install libjpeg-dev` (Debian, Ubuntu), `dnf install "
    "libjpeg-turbo-devel` (Fedora, RHEL), or set CMAKE_PREFIX_PATH to where it is")
string(CONCAT hpcai500_libjpeg_hint ${hpcai500_libjpeg_hint})

find_package(JPEG)
if(NOT JPEG_FOUND)
  message(FATAL_ERROR "libjpeg was not found. ${hpcai500_libjpeg_hint}.")
endif()

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES JPEG::JPEG)
check_cxx_source_compiles("
#include <cstdio>
#include <jpeglib.h>
int main() {
  jpeg_decompress_struct d{};
  JDIMENSION offset = 0, width = 1;
  d.out_color_space = JCS_EXT_RGBX;
  jpeg_crop_scanline(&d, &offset, &width);
  return static_cast<int>(jpeg_skip_scanlines(&d, 1));
}" HPCAI500_LIBJPEG_IS_TURBO)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT HPCAI500_LIBJPEG_IS_TURBO)
  message(FATAL_ERROR "The libjpeg in ${JPEG_LIBRARIES} is not libjpeg-turbo 1.5 or newer "
                      "(no jpeg_crop_scanline). ${hpcai500_libjpeg_hint}.")
endif()

# jconfig.h may be in a directory of the architecture's that the compiler knows and CMake does not.
file(GLOB jconfig_candidates ${JPEG_INCLUDE_DIRS}/jconfig.h ${JPEG_INCLUDE_DIRS}/*/jconfig.h)
set(hpcai500_libjpeg_version unknown)
foreach(candidate IN LISTS jconfig_candidates)
  file(STRINGS ${candidate} version_line REGEX "#define LIBJPEG_TURBO_VERSION +[0-9.]+$")
  if(version_line MATCHES "([0-9.]+)$")
    set(hpcai500_libjpeg_version ${CMAKE_MATCH_1})
    break()
  endif()
endforeach()
