// A bounded ring of batches that native threads read and decode ahead of the consumer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/failure.h"
#include "core/files.h"
#include "core/threads.h"
#include "decode_crop.h"

namespace hpcai500 {

/// The paths of a data set, packed: a million small strings would cost more memory than their letters.
class PathTable {
  public:
    /// Throws std::invalid_argument when a path is empty or has a zero byte inside.
    void add(std::string_view path);
    std::size_t size() const { return ends_.size(); }
    const char* path(std::size_t index) const {
        return letters_.data() + (index == 0 ? 0 : ends_[index - 1]);
    }

  private:
    std::vector<char> letters_;
    std::vector<std::size_t> ends_;
};

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
    std::int64_t warnings = 0;
    std::vector<ImageFailure> failures = {};  ///< in order of position
    SeekCounts seek = {};
};

/// Threads take single images, not batches: all of them work on the oldest unfinished batch, and none waits
/// for the slowest at its end because the next batch begins as long as a slot is free. Memory is what the
/// caller gave (the slots) and one decoder per thread.
///
/// The functions may be called from several threads. Not to be used after fork(): the child has no threads.
class Loader {
  public:
    /// Reads `paths` below the folder `root`, which stays open: a later chdir or a renamed parent changes
    /// nothing. Every slot has room for batch_size * spec.image_bytes() bytes and stays valid until close().
    /// Throws std::invalid_argument and std::system_error.
    Loader(const std::string& root, PathTable paths, const DecodeSpec& spec, std::vector<void*> slots,
           int batch_size, int threads, std::shared_ptr<const SeekIndex> index = nullptr);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    /// Queues one batch; never waits. Throws std::invalid_argument on an empty or too large batch and on a
    /// sample that no path has.
    void submit(std::span<const std::int64_t> samples, std::uint64_t seed, std::uint32_t epoch);

    /// The oldest batch, or nothing when it did not finish in time. Throws std::runtime_error when it never
    /// can: nothing was submitted, the consumer holds every slot, or the loader is closed.
    std::optional<FinishedBatch> next(std::chrono::milliseconds patience);

    /// Gives a slot back. Throws std::invalid_argument when it is not held.
    void release(int slot);

    std::size_t pending() const;

    /// Stops the threads after the images they are working on. May be called twice.
    void close();

  private:
    class Ring;
    struct Work;
    void serve(ImageDecoder& decoder);
    void check_open() const;
    FinishedBatch make_image(const Work& work, ImageDecoder& decoder, GrowBuffer<std::uint8_t>& file) const;

    const Descriptor folder_;
    const PathTable paths_;
    const DecodeSpec spec_;
    const std::vector<void*> slots_;
    const int batch_size_;
    const std::shared_ptr<const SeekIndex> index_;

    mutable std::mutex mutex_;
    std::condition_variable work_available_, batch_finished_;
    const std::unique_ptr<Ring> ring_;
    bool closed_ = false;

    std::vector<std::unique_ptr<ImageDecoder>> decoders_;
    OwnThreads threads_;
};

}  // namespace hpcai500
