// The book-keeping of a loader: which batch is in which slot, which image is next. No threads and no waiting
// here; the loader calls it under its mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/failure.h"
#include "seek_index.h"

namespace hpcai500 {

/// An image that could not be made. Its place in the slot is filled with zeros.
struct ImageFailure {
    int position;         ///< in the batch
    std::int64_t sample;  ///< index of the path
    FailureKind kind;
    std::string reason;
};

struct FinishedBatch {
    int slot;
    int count;
    std::int64_t warnings;
    std::vector<ImageFailure> failures;  ///< in order of position
    SeekCounts seek;
};

/// What is told of an image that was made.
struct MadeImage {
    std::int64_t warnings = 0;
    SeekUse seek = SeekUse::without;
};

/// Batches go submitted -> filling (has a slot) -> finished -> held by the consumer -> slot free again.
/// They start and are handed out in the order of submission.
class BatchRing {
  public:
    /// One image to make, and where.
    struct Work {
        std::uint64_t batch;
        int slot;
        int position;
        std::int64_t sample;
        std::uint64_t seed;
        std::uint32_t epoch;
    };

    explicit BatchRing(int slots);

    void submit(std::vector<std::int64_t> samples, std::uint64_t seed, std::uint32_t epoch);
    /// The next image, or nothing while no batch waits or no slot is free.
    std::optional<Work> claim();
    /// Reports an image as done. True when it was the last one of the batch that is next to be handed out.
    bool complete(const Work& work, const MadeImage& made, std::optional<ImageFailure> failure);
    /// The oldest batch, if it is finished; its slot is then held by the consumer.
    std::optional<FinishedBatch> take();
    /// Throws std::invalid_argument when the consumer does not hold this slot.
    void release(int slot);

    std::size_t pending() const { return batches_.size(); }
    /// True when no batch can ever finish because the consumer holds every slot.
    bool starved() const;

  private:
    struct Batch {
        std::vector<std::int64_t> samples;
        std::uint64_t seed;
        std::uint32_t epoch;
        int slot = -1;
        std::size_t claimed = 0, completed = 0;
        std::int64_t warnings = 0;
        std::vector<ImageFailure> failures;
        SeekCounts seek;
        bool finished() const { return slot >= 0 && completed == samples.size(); }
    };
    enum class SlotState { free, filling, held };

    int find_free_slot() const;

    std::deque<Batch> batches_;
    std::uint64_t oldest_ = 0;  ///< number of batches_.front()
    std::size_t claiming_ = 0;  ///< index in batches_ of the batch that images are claimed from
    std::vector<SlotState> slots_;
};

}  // namespace hpcai500
