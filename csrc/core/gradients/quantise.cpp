#include "quantise.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cast.h"
#include "core/vectors/kernels.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

// What of a task's pieces is not done yet.
class Remainder {
  public:
    explicit Remainder(std::span<const BucketPiece> pieces) : pieces_(pieces) {}

    bool empty() const { return index_ == pieces_.size(); }
    std::size_t index() const { return index_; }
    std::size_t tensor() const { return pieces_[index_].tensor; }
    std::int64_t begin() const { return pieces_[index_].begin + done_; }
    std::int64_t at() const { return pieces_[index_].at + done_; }
    std::int64_t count() const { return pieces_[index_].count - done_; }

    void take(std::int64_t count) {
        done_ += count;
        if (done_ < pieces_[index_].count) return;
        ++index_;
        done_ = 0;
    }

  private:
    std::span<const BucketPiece> pieces_;
    std::size_t index_ = 0;
    std::int64_t done_ = 0;
};

// Cuts a task into runs of whole blocks of one tensor, and blocks that several share or that end the bucket.
template <class Whole, class Shared>
void in_blocks(std::span<const BucketPiece> pieces, const Whole& whole, const Shared& shared) {
    Remainder left(pieces);
    while (!left.empty()) {
        const std::int64_t blocks = left.count() / quantised_block;
        if (blocks == 0) {
            shared(left);
            continue;
        }
        whole(left, blocks);
        left.take(blocks * quantised_block);
    }
}

// Calls copy(place in the block, count) for each part of the block that begins here, and takes it.
template <class Copy>
std::int64_t for_parts(Remainder& left, const Copy& copy) {
    std::int64_t filled = 0;
    while (!left.empty() && filled < quantised_block) {
        const std::int64_t count = std::min(left.count(), quantised_block - filled);
        copy(filled, count);
        left.take(count);
        filled += count;
    }
    return filled;
}

std::size_t float_bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(float);
}

// Behind the last value: zeros to the end of its chunk.
void pad(std::uint8_t* buffer, std::int64_t count) {
    const std::int64_t blocks = (count + quantised_block - 1) / quantised_block;
    const std::int64_t unused =
        (quantised_chunk_blocks - blocks % quantised_chunk_blocks) % quantised_chunk_blocks;
    if (unused == 0) return;
    std::uint8_t* const end = buffer + quantised_bytes(count);
    std::uint8_t* const chunk = end - quantised_chunk_bytes;
    std::memset(chunk + (quantised_chunk_blocks - unused) * 4, 0, static_cast<std::size_t>(unused * 4));
    std::memset(end - unused * quantised_block, 0, static_cast<std::size_t>(unused * quantised_block));
}

struct Quantiser {
    SourceTensors sources;
    std::uint8_t* buffer;
    float* residual;
    float scale;
    bool squared;

    float* carried(std::int64_t at) const { return residual != nullptr ? residual + at : nullptr; }

    void whole(const Remainder& left, std::int64_t blocks, double* squares) const {
        squares[left.index()] += kernels().compression.quantise[squared](
            {sources[left.tensor()].data() + left.begin(), carried(left.at()), buffer,
             left.at() / quantised_block, blocks, scale});
    }

    void shared(Remainder& left, double* squares) const {
        const CompressionKernel& kernel = kernels().compression;
        float values[quantised_block] = {}, rests[quantised_block] = {};
        const std::int64_t at = left.at();
        const std::int64_t count = for_parts(left, [&](std::int64_t place, std::int64_t part) {
            const float* const from = sources[left.tensor()].data() + left.begin();
            std::memcpy(values + place, from, float_bytes(part));
            if (squared) squares[left.index()] += kernel.squares(from, part);
        });
        if (residual != nullptr) std::memcpy(rests, residual + at, float_bytes(count));
        kernel.quantise[0](
            {values, residual != nullptr ? rests : nullptr, buffer, at / quantised_block, 1, scale});
        if (residual != nullptr) std::memcpy(residual + at, rests, float_bytes(count));
    }
};

struct Dequantiser {
    const std::uint8_t* buffer;
    TargetTensors targets;
    float scale;
    bool accumulate, squared, stream;

    void whole(const Remainder& left, std::int64_t blocks, double* squares) const {
        squares[left.index()] += kernels().compression.dequantise[accumulate][squared](
            {buffer, targets[left.tensor()].data() + left.begin(), left.at() / quantised_block, blocks, scale,
             stream && !accumulate});
    }

    void shared(Remainder& left, double* squares) const {
        const CompressionKernel& kernel = kernels().compression;
        float values[quantised_block] = {};
        const std::int64_t block = left.at() / quantised_block;
        Remainder held = left;
        if (accumulate)
            for_parts(held, [&](std::int64_t place, std::int64_t part) {
                std::memcpy(values + place, targets[held.tensor()].data() + held.begin(), float_bytes(part));
            });
        kernel.dequantise[accumulate][0]({buffer, values, block, 1, scale, false});
        for_parts(left, [&](std::int64_t place, std::int64_t part) {
            float* const to = targets[left.tensor()].data() + left.begin();
            std::memcpy(to, values + place, float_bytes(part));
            if (squared) squares[left.index()] += kernel.squares(to, part);
        });
    }
};

// The tasks of a bucket, by either of the two.
template <class Worker>
void run_blocks(const Bucket& bucket, const Worker& worker, double* norms, int threads) {
    static_assert(bucket_task % quantised_block == 0, "a block belongs to one task");
    const auto work = [&](std::span<const BucketPiece> pieces, double* squares) {
        in_blocks(
            pieces, [&](const Remainder& left, std::int64_t blocks) { worker.whole(left, blocks, squares); },
            [&](Remainder& left) { worker.shared(left, squares); });
    };
    bucket.run(work, norms, threads);
}

}  // namespace

std::int64_t quantised_bytes(std::int64_t count) {
    if (count < 0 || count > std::int64_t{1} << 48)
        throw std::invalid_argument("count must be in [0, 2**48], got " + std::to_string(count));
    return (count + quantised_chunk - 1) / quantised_chunk * quantised_chunk_bytes;
}

void quantise(SourceTensors sources, std::uint8_t* buffer, float* residual, float scale, double* norms,
              int threads) {
    const Bucket bucket(sources);
    run_blocks(bucket, Quantiser{sources, buffer, residual, scale, norms != nullptr}, norms, threads);
    pad(buffer, bucket.count());
}

void dequantise(const std::uint8_t* buffer, TargetTensors targets, float scale, bool accumulate,
                double* norms, int threads) {
    const Bucket bucket(targets);
    const bool stream = stream_past_cache(bucket.count() * 4);
    run_blocks(bucket, Dequantiser{buffer, targets, scale, accumulate, norms != nullptr, stream}, norms,
               threads);
}

}  // namespace hpcai500
