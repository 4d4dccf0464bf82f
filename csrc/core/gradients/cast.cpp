#include "cast.h"

#include "core/vectors/kernels.h"

namespace hpcai500 {

std::size_t item_size(Wire wire) {
    return wire == Wire::float32 ? 4 : 2;
}

bool stream_past_cache(std::int64_t bytes) {
    // A core's second-level cache, as most have it.
    constexpr std::int64_t cached = 1 << 20;
    return bytes >= cached;
}

void pack(SourceTensors sources, void* out, Wire wire, float scale, double* norms, int threads) {
    const Bucket bucket(sources);
    const auto item = static_cast<std::int64_t>(item_size(wire));
    const bool stream = stream_past_cache(bucket.count() * item);
    const Cast cast = kernels().compression.pack[static_cast<std::size_t>(wire)][norms != nullptr];
    auto* const bytes = static_cast<std::uint8_t*>(out);
    const auto work = [&](std::span<const BucketPiece> pieces, double* squares) {
        for (const BucketPiece& piece : pieces)
            *squares++ = cast({sources[piece.tensor].data() + piece.begin, bytes + piece.at * item,
                               piece.count, scale, stream});
    };
    bucket.run(work, norms, threads);
}

void unpack(const void* source, TargetTensors targets, Wire wire, float scale, double* norms, int threads) {
    const Bucket bucket(targets);
    const auto item = static_cast<std::int64_t>(item_size(wire));
    const bool stream = stream_past_cache(bucket.count() * 4);
    const Cast cast = kernels().compression.unpack[static_cast<std::size_t>(wire)][norms != nullptr];
    const auto* const bytes = static_cast<const std::uint8_t*>(source);
    const auto work = [&](std::span<const BucketPiece> pieces, double* squares) {
        for (const BucketPiece& piece : pieces)
            *squares++ = cast({bytes + piece.at * item, targets[piece.tensor].data() + piece.begin,
                               piece.count, scale, stream});
    };
    bucket.run(work, norms, threads);
}

}  // namespace hpcai500
