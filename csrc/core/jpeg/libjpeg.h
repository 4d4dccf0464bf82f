// What stands between libjpeg-turbo and us: how its errors become ours, where it reads, and what its headers
// say of a scan. For jpeg_reader.cpp and the fuzz targets.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <optional>
#include <type_traits>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>

#include "core/failure.h"
#include "core/jpeg/baseline/decoder.h"

namespace hpcai500 {

/// libjpeg's error manager with our fields behind it; libjpeg passes it back by its first member's address.
struct JpegErrors {
    jpeg_error_mgr manager;
    std::jmp_buf jump;
    char reason[JMSG_LENGTH_MAX];
    FailureKind kind;
    bool past_end;            ///< the data has ended and a made-up end marker was given to libjpeg
    bool end_may_be_missing;  ///< the entropy decoder says itself when it lacks data, so the end marker may
                              ///< be missing
};

/// Fills the manager's functions and returns what jpeg_decompress_struct::err wants.
jpeg_error_mgr* install(JpegErrors& errors);

/// A source manager for a block of memory whose end is an error unless JpegErrors::end_may_be_missing is set.
void install_memory_source(jpeg_decompress_struct& decompressor, jpeg_source_mgr& source,
                           const std::uint8_t* data, std::size_t size);

/// Ends the running libjpeg call with a failure: only from inside libjpeg's call-backs.
[[noreturn]] void fail(j_common_ptr common, FailureKind kind, const char* reason);

/// Runs `call` (which calls libjpeg) and turns libjpeg's error exit into a DecodeError, or std::bad_alloc.
///
/// libjpeg leaves by longjmp, which skips destructors: `call` and everything below it may own nothing, and
/// this function itself has no local object to destroy.
template <class Call>
void guarded(JpegErrors& errors, const Call& call) {
    static_assert(std::is_trivially_destructible_v<Call>);
    if (setjmp(errors.jump) != 0) {
        if (errors.kind == FailureKind::memory) throw std::bad_alloc();
        throw DecodeError(errors.kind, errors.reason);
    }
    call();
}

/// The first scan of an image whose header was read, or nothing where it is of a kind that libjpeg is left
/// with. libjpeg reads all headers, so that both decoders agree on what is an image, and nobody parses
/// markers twice.
std::optional<baseline::Scan> baseline_scan(const jpeg_decompress_struct& decompressor);

}  // namespace hpcai500
