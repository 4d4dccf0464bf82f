// What libjpeg's header says of a scan, for our own decoder. Internal to jpeg_reader.cpp.
#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>

#include "core/jpeg/baseline/scan.h"

namespace hpcai500 {

/// The first scan of an image whose header was read, or nothing where it is of a kind that libjpeg is left
/// with. libjpeg reads all headers, so that both decoders agree on what is an image, and nobody parses
/// markers twice.
std::optional<baseline::Scan> baseline_scan(const jpeg_decompress_struct& decompressor);

}  // namespace hpcai500
