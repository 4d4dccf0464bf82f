#include "loader.h"

#include <pthread.h>

#include <cstring>
#include <exception>
#include <stdexcept>

#include "core/signals_blocked.h"

namespace hpcai500 {
Loader::Loader(const std::string& root, PathTable paths, const DecodeSpec& spec, std::vector<void*> slots,
               int batch_size, int threads, std::shared_ptr<const SeekIndex> index)
    : folder_(root),
      paths_(std::move(paths)),
      spec_(spec),
      slots_(std::move(slots)),
      batch_size_(batch_size),
      index_(std::move(index)),
      ring_(static_cast<int>(slots_.size())) {
    validate(spec_);
    if (slots_.empty()) throw std::invalid_argument("slots must hold at least one buffer, got none");
    if (batch_size < 1) throw std::invalid_argument("a slot must have room for at least one image");
    if (threads < 1)
        throw std::invalid_argument("threads must be at least 1, got " + std::to_string(threads));
    // Made here, where a lack of memory is an exception and not the end of a thread.
    for (int i = 0; i < threads; ++i) decoders_.push_back(std::make_unique<ImageDecoder>());
    threads_.reserve(decoders_.size());
    const SignalsBlocked blocked;
    try {
        for (const auto& decoder : decoders_) {
            threads_.emplace_back([this, &decoder] { work(*decoder); });
            pthread_setname_np(threads_.back().native_handle(), "hpcai500-decode");
        }
    } catch (...) {
        close();
        throw;
    }
}

Loader::~Loader() {
    close();
}

void Loader::check_open() const {
    if (closed_) throw std::runtime_error("the loader is closed");
}

void Loader::submit(std::span<const std::int64_t> samples, std::uint64_t seed, std::uint32_t epoch) {
    if (samples.empty() || samples.size() > static_cast<std::size_t>(batch_size_))
        throw std::invalid_argument("a batch must have 1 to " + std::to_string(batch_size_) +
                                    " samples, got " + std::to_string(samples.size()));
    for (const std::int64_t sample : samples)
        if (sample < 0 || static_cast<std::uint64_t>(sample) >= paths_.size())
            throw std::invalid_argument("samples must be in [0, " + std::to_string(paths_.size()) +
                                        "), got " + std::to_string(sample));
    {
        const std::lock_guard lock(mutex_);
        check_open();
        ring_.submit({samples.begin(), samples.end()}, seed, epoch);
    }
    work_available_.notify_all();
}

std::optional<FinishedBatch> Loader::next(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    for (;;) {
        check_open();
        if (ring_.pending() == 0)
            throw std::runtime_error("next() without a submitted batch: call submit() first");
        if (auto batch = ring_.take()) return batch;
        if (ring_.starved())
            throw std::runtime_error("all " + std::to_string(slots_.size()) +
                                     " slots are held: call release() before the next next()");
        if (batch_finished_.wait_until(lock, deadline) == std::cv_status::timeout) return ring_.take();
    }
}

void Loader::release(int slot) {
    {
        const std::lock_guard lock(mutex_);
        ring_.release(slot);
    }
    work_available_.notify_all();
}

std::size_t Loader::pending() const {
    const std::lock_guard lock(mutex_);
    return ring_.pending();
}

void Loader::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
    }
    work_available_.notify_all();
    batch_finished_.notify_all();
    const std::lock_guard lock(closing_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

std::optional<ImageFailure> Loader::make_image(const BatchRing::Work& work, ImageDecoder& decoder,
                                               GrowBuffer<std::uint8_t>& file, MadeImage& made) const {
    const std::size_t bytes = spec_.image_bytes();
    auto* image = static_cast<std::uint8_t*>(slots_[static_cast<std::size_t>(work.slot)]) +
                  bytes * static_cast<std::size_t>(work.position);
    const auto sample = static_cast<std::uint64_t>(work.sample);
    const auto failed = [&](FailureKind kind, const char* reason) {
        std::memset(image, 0, bytes);
        return ImageFailure{work.position, work.sample, kind, reason};
    };
    try {
        const auto jpeg = folder_.read(paths_.path(sample), file);
        made.warnings =
            decoder.decode_crop(jpeg, spec_, {work.seed, work.epoch, sample}, image, index_.get());
        made.seek = decoder.last_seek();
        return std::nullopt;
    } catch (const DecodeError& error) {
        return failed(error.kind(), error.what());
    } catch (const std::exception& error) {
        return failed(FailureKind::corrupt, error.what());
    }
}

void Loader::work(ImageDecoder& decoder) {
    GrowBuffer<std::uint8_t> file;
    std::unique_lock lock(mutex_);
    for (;;) {
        if (closed_) return;
        const auto work = ring_.claim();
        if (!work) {
            work_available_.wait(lock);
            continue;
        }
        lock.unlock();
        MadeImage made;
        auto failure = make_image(*work, decoder, file, made);
        lock.lock();
        if (ring_.complete(*work, made, std::move(failure))) batch_finished_.notify_all();
    }
}

}  // namespace hpcai500
