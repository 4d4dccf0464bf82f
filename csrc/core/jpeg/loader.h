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
#include <thread>
#include <vector>

#include "batch_ring.h"
#include "core/file_reader.h"
#include "decode_crop.h"

namespace hpcai500 {

/// Threads take single images, not batches: all of them work on the oldest unfinished batch, and none waits
/// for the slowest at its end because the next batch begins as long as a slot is free. Memory is what the
/// caller gave (the slots) and one decoder per thread.
///
/// The functions may be called from several threads. Not to be used after fork(): the child has no threads.
class Loader {
  public:
    /// Every slot has room for batch_size * spec.image_bytes() bytes and stays valid until close().
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
    void work(ImageDecoder& decoder);
    void check_open() const;
    std::optional<ImageFailure> make_image(const BatchRing::Work& work, ImageDecoder& decoder,
                                           GrowBuffer<std::uint8_t>& file, MadeImage& made) const;

    const Folder folder_;
    const PathTable paths_;
    const DecodeSpec spec_;
    const std::vector<void*> slots_;
    const int batch_size_;
    const std::shared_ptr<const SeekIndex> index_;

    mutable std::mutex mutex_;
    std::condition_variable work_available_, batch_finished_;
    BatchRing ring_;
    bool closed_ = false;

    std::vector<std::unique_ptr<ImageDecoder>> decoders_;
    std::mutex closing_;
    std::vector<std::thread> threads_;
};

}  // namespace hpcai500
