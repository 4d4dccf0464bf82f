// A bucket: tensors laid one after the other in a buffer, and how its work is cut.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace hpcai500 {

using SourceTensors = std::span<const std::span<const float>>;
using TargetTensors = std::span<const std::span<float>>;

/// Values that one thread takes at a time. Cuts are at multiples of it in the buffer, so that neither they
/// nor the sums between them depend on the number of threads.
inline constexpr std::int64_t bucket_task = 1 << 18;

/// Of tensor `tensor`, values [begin, begin + count), which lie from `at` on in the buffer.
struct BucketPiece {
    std::size_t tensor;
    std::int64_t begin, at, count;
};

class Bucket {
  public:
    explicit Bucket(SourceTensors tensors);
    explicit Bucket(TargetTensors tensors);

    std::int64_t count() const { return count_; }
    std::int64_t tasks() const { return static_cast<std::int64_t>(task_begin_.size()) - 1; }

    /// The pieces of task `task`, in order; empty tensors have none.
    std::span<const BucketPiece> pieces(std::int64_t task) const;

    /// Calls work(pieces, squares) for each task, on up to `threads` threads, in the default floating-point
    /// environment, whatever the caller's is. `work` sets squares[i] to the sum of the squares of pieces[i].
    /// With `norms`, norms[t] is the square root of the sum for tensor t at the end.
    using Work = std::function<void(std::span<const BucketPiece>, double* squares)>;
    void run(const Work& work, double* norms, int threads) const;

  private:
    template <class Tensors>
    void cut(Tensors tensors);

    std::vector<BucketPiece> pieces_;
    std::vector<std::size_t> task_begin_;  // of each task its first piece, and the end
    std::size_t tensors_ = 0;
    std::int64_t count_ = 0;
};

}  // namespace hpcai500
