#include "batch_ring.h"

#include <algorithm>
#include <stdexcept>

namespace hpcai500 {

BatchRing::BatchRing(int slots) : slots_(static_cast<std::size_t>(slots), SlotState::free) {}

void BatchRing::submit(std::vector<std::int64_t> samples, std::uint64_t seed, std::uint32_t epoch) {
    batches_.push_back({std::move(samples), seed, epoch, -1, 0, 0, 0, {}, {}});
}

int BatchRing::find_free_slot() const {
    const auto found = std::find(slots_.begin(), slots_.end(), SlotState::free);
    return found == slots_.end() ? -1 : static_cast<int>(found - slots_.begin());
}

std::optional<BatchRing::Work> BatchRing::claim() {
    if (claiming_ == batches_.size()) return std::nullopt;
    Batch& batch = batches_[claiming_];
    if (batch.slot < 0) {
        batch.slot = find_free_slot();
        if (batch.slot < 0) return std::nullopt;
        slots_[static_cast<std::size_t>(batch.slot)] = SlotState::filling;
    }
    const Work work{oldest_ + claiming_,          batch.slot, static_cast<int>(batch.claimed),
                    batch.samples[batch.claimed], batch.seed, batch.epoch};
    if (++batch.claimed == batch.samples.size()) ++claiming_;
    return work;
}

bool BatchRing::complete(const Work& work, const MadeImage& made, std::optional<ImageFailure> failure) {
    Batch& batch = batches_[work.batch - oldest_];
    batch.warnings += made.warnings;
    batch.seek.add(made.seek);
    if (failure) batch.failures.push_back(std::move(*failure));
    ++batch.completed;
    return work.batch == oldest_ && batch.finished();
}

std::optional<FinishedBatch> BatchRing::take() {
    if (batches_.empty() || !batches_.front().finished()) return std::nullopt;
    Batch& batch = batches_.front();
    std::sort(batch.failures.begin(), batch.failures.end(),
              [](const ImageFailure& a, const ImageFailure& b) { return a.position < b.position; });
    FinishedBatch finished{batch.slot, static_cast<int>(batch.samples.size()), batch.warnings,
                           std::move(batch.failures), batch.seek};
    slots_[static_cast<std::size_t>(batch.slot)] = SlotState::held;
    batches_.pop_front();
    ++oldest_;
    --claiming_;
    return finished;
}

void BatchRing::release(int slot) {
    if (slot < 0 || slot >= static_cast<int>(slots_.size()))
        throw std::invalid_argument("slot must be in [0, " + std::to_string(slots_.size()) + "), got " +
                                    std::to_string(slot));
    SlotState& state = slots_[static_cast<std::size_t>(slot)];
    if (state != SlotState::held)
        throw std::invalid_argument("slot " + std::to_string(slot) +
                                    " is not held: release a slot once, after next() has returned it");
    state = SlotState::free;
}

bool BatchRing::starved() const {
    return !batches_.empty() && batches_.front().slot < 0 &&
           std::all_of(
               slots_.begin(), slots_.end(), [](SlotState state) { return state == SlotState::held; });
}

}  // namespace hpcai500
