#include "layer_norms.h"

#include "core/vectors/kernels.h"

namespace hpcai500 {

void layer_norms(SourceTensors tensors, double* norms, int threads) {
    const auto squares_of = kernels().compression.squares;
    const auto work = [&](std::span<const BucketPiece> pieces, double* squares) {
        for (const BucketPiece& piece : pieces)
            *squares++ = squares_of(tensors[piece.tensor].data() + piece.begin, piece.count);
    };
    Bucket(tensors).run(work, norms, threads);
}

}  // namespace hpcai500
