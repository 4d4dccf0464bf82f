// Sums of float32 values over the processes of one host, through memory that they share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "barrier.h"
#include "core/files.h"

namespace hpcai500 {

/// One rank's view of a file in memory (tmpfs) in which each rank has room for a part of its values. A rank
/// writes its part there, sums its share of all parts in the order of the ranks, and reads the whole sum: the
/// sums are the same on all ranks to the bit, whatever a sum of several NaN gives.
///
/// Not to be used, nor destroyed, after fork(): the child has neither the memory nor the file.
class SharedSum {
  public:
    static constexpr std::size_t slot_values = std::size_t{1} << 18;
    static constexpr int most_ranks = 1024;

    /// Opens `path`; rank 0 makes it, and the others must come later. Nobody needs the name once all have it.
    /// Throws std::invalid_argument, and std::runtime_error where the file cannot be had or memory is short.
    SharedSum(const std::string& path, int rank, int ranks);
    ~SharedSum();
    SharedSum(const SharedSum&) = delete;
    SharedSum& operator=(const SharedSum&) = delete;

    /// Replaces `values` by their sum over all ranks, which call this with as many. Throws std::runtime_error
    /// when a rank has ended or closed meanwhile; from then on the others throw it too.
    void all_reduce(std::span<float> values);

    /// The other ranks no longer wait for this one. May be called twice, and while another thread sums.
    void close();

  private:
    using Word = std::atomic<std::uint32_t>;
    class Others;
    float* slot(int rank) const;
    float* sums() const { return slot(ranks_); }

    const int rank_, ranks_;
    const std::size_t bytes_;
    Descriptor file_;
    BarrierWords<Word>* words_;  ///< the file begins with them
};

}  // namespace hpcai500
