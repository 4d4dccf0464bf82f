#include "loader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

namespace hpcai500 {
namespace {

// No image file is larger; a path to something else (a video, a disk) ends here and not in the memory limit.
constexpr std::uint64_t most_file_bytes = std::uint64_t{1} << 30;

Descriptor open_folder(const std::string& path) {
    Descriptor folder = open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY);
    if (folder.value() < 0)
        throw std::system_error(errno, std::generic_category(), "cannot open the folder " + path);
    return folder;
}

// The whole file, in `buffer`. Throws DecodeError (unreadable).
std::span<const std::uint8_t> read_file(const Descriptor& folder, const char* path,
                                        GrowBuffer<std::uint8_t>& buffer) {
    const Descriptor file = open_regular(path, folder.value());
    const std::uint64_t size = size_of(file.value());
    if (size > most_file_bytes)
        throw DecodeError(FailureKind::unreadable, "the file has " + std::to_string(size) +
                                                       " bytes; the limit for an image is " +
                                                       std::to_string(most_file_bytes));
    std::uint8_t* bytes = buffer.reserve(size + 1);
    // If it shrank under us, the decoder will say that it is truncated.
    return {bytes, read_at(file.value(), 0, {bytes, size})};
}

}  // namespace

void PathTable::add(std::string_view path) {
    if (path.empty()) throw std::invalid_argument("path " + std::to_string(size()) + " is empty");
    if (path.find('\0') != std::string_view::npos)
        throw std::invalid_argument("path " + std::to_string(size()) + " has a zero byte inside");
    letters_.insert(letters_.end(), path.begin(), path.end());
    letters_.push_back('\0');
    ends_.push_back(letters_.size());
}

// One image to make, and where.
struct Loader::Work {
    std::uint64_t batch;
    int slot;
    int position;
    std::int64_t sample;
    std::uint64_t seed;
    std::uint32_t epoch;
};

// Which batch is in which slot, which image is next; called under the loader's mutex. Batches go submitted ->
// filling (has a slot) -> finished -> held by the consumer -> slot free again. They start and are handed out
// in the order of submission.
class Loader::Ring {
  public:
    explicit Ring(std::size_t slots) : slots_(slots, SlotState::free) {}

    void submit(std::vector<std::int64_t> samples, std::uint64_t seed, std::uint32_t epoch) {
        const auto count = static_cast<int>(samples.size());
        batches_.push_back({std::move(samples), seed, epoch, {-1, count}});
    }

    // The next image, or nothing while no batch waits or no slot is free.
    std::optional<Work> claim() {
        if (claiming_ == batches_.size()) return std::nullopt;
        Batch& batch = batches_[claiming_];
        int& slot = batch.made.slot;
        if (slot < 0) {
            const auto found = std::find(slots_.begin(), slots_.end(), SlotState::free);
            if (found == slots_.end()) return std::nullopt;
            *found = SlotState::filling;
            slot = static_cast<int>(found - slots_.begin());
        }
        const Work work{oldest_ + claiming_,          slot,       static_cast<int>(batch.claimed),
                        batch.samples[batch.claimed], batch.seed, batch.epoch};
        if (++batch.claimed == batch.samples.size()) ++claiming_;
        return work;
    }

    // Adds what became of an image. True when it was the last one of the batch that is next to be handed out.
    bool complete(const Work& work, FinishedBatch&& made) {
        Batch& batch = batches_[work.batch - oldest_];
        batch.made.warnings += made.warnings;
        batch.made.seek.add(made.seek);
        std::move(made.failures.begin(), made.failures.end(), std::back_inserter(batch.made.failures));
        ++batch.completed;
        return work.batch == oldest_ && batch.finished();
    }

    // The oldest batch, if it is finished; its slot is then held by the consumer.
    std::optional<FinishedBatch> take() {
        if (batches_.empty() || !batches_.front().finished()) return std::nullopt;
        FinishedBatch made = std::move(batches_.front().made);
        std::sort(made.failures.begin(), made.failures.end(),
                  [](const ImageFailure& a, const ImageFailure& b) { return a.position < b.position; });
        slots_[static_cast<std::size_t>(made.slot)] = SlotState::held;
        batches_.pop_front();
        ++oldest_;
        --claiming_;
        return made;
    }

    void release(int slot) {
        if (slot < 0 || slot >= static_cast<int>(slots_.size()))
            throw std::invalid_argument("slot must be in [0, " + std::to_string(slots_.size()) + "), got " +
                                        std::to_string(slot));
        SlotState& state = slots_[static_cast<std::size_t>(slot)];
        if (state != SlotState::held)
            throw std::invalid_argument("slot " + std::to_string(slot) +
                                        " is not held: release a slot once, after next() has returned it");
        state = SlotState::free;
    }

    std::size_t pending() const { return batches_.size(); }

    // Whether no batch can ever finish because the consumer holds every slot.
    bool starved() const {
        const auto held = [](SlotState state) { return state == SlotState::held; };
        return !batches_.empty() && batches_.front().made.slot < 0 &&
               std::all_of(slots_.begin(), slots_.end(), held);
    }

  private:
    struct Batch {
        std::vector<std::int64_t> samples;
        std::uint64_t seed;
        std::uint32_t epoch;
        FinishedBatch made;  // slot -1 before it has one
        std::size_t claimed = 0, completed = 0;
        bool finished() const { return completed == samples.size(); }
    };
    enum class SlotState { free, filling, held };

    std::deque<Batch> batches_;
    std::uint64_t oldest_ = 0;  // number of batches_.front()
    std::size_t claiming_ = 0;  // index in batches_ of the batch that images are claimed from
    std::vector<SlotState> slots_;
};

Loader::Loader(const std::string& root, PathTable paths, const DecodeSpec& spec, std::vector<void*> slots,
               int batch_size, int threads, std::shared_ptr<const SeekIndex> index)
    : folder_(open_folder(root)),
      paths_(std::move(paths)),
      spec_(spec),
      slots_(std::move(slots)),
      batch_size_(batch_size),
      index_(std::move(index)),
      ring_(std::make_unique<Ring>(slots_.size())) {
    validate(spec_);
    if (slots_.empty()) throw std::invalid_argument("slots must hold at least one buffer, got none");
    if (batch_size < 1) throw std::invalid_argument("a slot must have room for at least one image");
    const std::size_t count = checked_threads(threads);
    // Made here, where a lack of memory is an exception and not the end of a thread.
    for (std::size_t i = 0; i < count; ++i) decoders_.push_back(std::make_unique<ImageDecoder>());
    try {
        threads_.start(count, "hpcai500-decode", [this](std::size_t number) { serve(*decoders_[number]); });
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
        ring_->submit({samples.begin(), samples.end()}, seed, epoch);
    }
    work_available_.notify_all();
}

std::optional<FinishedBatch> Loader::next(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    for (;;) {
        check_open();
        if (ring_->pending() == 0)
            throw std::runtime_error("next() without a submitted batch: call submit() first");
        if (auto batch = ring_->take()) return batch;
        if (ring_->starved())
            throw std::runtime_error("all " + std::to_string(slots_.size()) +
                                     " slots are held: call release() before the next next()");
        if (batch_finished_.wait_until(lock, deadline) == std::cv_status::timeout) return ring_->take();
    }
}

void Loader::release(int slot) {
    {
        const std::lock_guard lock(mutex_);
        ring_->release(slot);
    }
    work_available_.notify_all();
}

std::size_t Loader::pending() const {
    const std::lock_guard lock(mutex_);
    return ring_->pending();
}

void Loader::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
    }
    work_available_.notify_all();
    batch_finished_.notify_all();
    threads_.join();
}

// A batch of one image: its warnings, its use of the index, and its failure where it has one.
FinishedBatch Loader::make_image(const Work& work, ImageDecoder& decoder,
                                 GrowBuffer<std::uint8_t>& file) const {
    const std::size_t bytes = spec_.image_bytes();
    auto* image = static_cast<std::uint8_t*>(slots_[static_cast<std::size_t>(work.slot)]) +
                  bytes * static_cast<std::size_t>(work.position);
    const auto sample = static_cast<std::uint64_t>(work.sample);
    FinishedBatch made{work.slot, 1};
    const auto fail = [&](FailureKind kind, const char* reason) {
        std::memset(image, 0, bytes);
        made.failures.push_back({work.position, work.sample, kind, reason});
    };
    try {
        const auto jpeg = read_file(folder_, paths_.path(sample), file);
        made.warnings =
            decoder.decode_crop(jpeg, spec_, {work.seed, work.epoch, sample}, image, index_.get());
        made.seek.add(decoder.last_seek());
    } catch (const DecodeError& error) {
        fail(error.kind(), error.what());
    } catch (const std::bad_alloc&) {
        fail(FailureKind::memory, "no memory is left");
    } catch (const std::exception& error) {
        fail(FailureKind::corrupt, error.what());
    }
    return made;
}

void Loader::serve(ImageDecoder& decoder) {
    GrowBuffer<std::uint8_t> file;
    std::unique_lock lock(mutex_);
    while (!closed_) {
        const auto work = ring_->claim();
        if (!work) {
            work_available_.wait(lock);
            continue;
        }
        lock.unlock();
        FinishedBatch made = make_image(*work, decoder, file);
        lock.lock();
        if (ring_->complete(*work, std::move(made))) batch_finished_.notify_all();
    }
}

}  // namespace hpcai500
