#include "scan_cursor.h"

#include <algorithm>

#include "unstuff.h"

namespace hpcai500::baseline {
namespace {

constexpr std::uint8_t first_restart_marker = 0xD0;
constexpr int restart_markers = 8;
constexpr std::size_t marker_bytes = 2;

}  // namespace

void ScanCursor::open(std::span<const std::uint8_t> data, int component_count, int restart_interval) {
    data_ = data;
    scan_.component_count = component_count;
    restart_interval_ = restart_interval;
}

void ScanCursor::start(int mcu, const SeekPoint& point, std::size_t end) {
    if (point.byte() > end || end > data_.size()) throw Surprise{};
    unread_ = data_.subspan(point.byte(), end - point.byte());
    byte_ = point.byte();
    mcu_ = mcu;
    read_interval();
    if (restart_interval_ > 0) {
        // A point behind a marker cannot be taken for another place, nor bring predictors.
        if (mcu > 0 && (point.bits_used() > 0 || !follows_marker())) throw Surprise{};
        return;
    }
    for (int c = 0; c < scan_.component_count; ++c) scan_.components[c].predictor = point.predictors[c];
    if (const int used = point.bits_used(); used > 0) {
        const std::uint8_t* const first = scan_.bits.next;
        if (first == scan_.end) throw Surprise{};
        scan_.bits = {first + 1, std::uint64_t{*first} << (56 + used), 8 - used};
    }
}

std::size_t ScanCursor::end_before(const SeekPoint& point) const {
    std::size_t end = point.byte();
    if (point.bits_used() == 0 || end >= data_.size()) return end;
    // Without the zero behind it, 0xFF would be a marker's beginning.
    return data_[end] == 0xFF ? std::min(end + 2, data_.size()) : end + 1;
}

// The data up to the next marker becomes the reader's.
void ScanCursor::read_interval() {
    std::uint8_t* out = unstuffed_.reserve(unread_.size() + padding_bytes);
    const Unstuffed got = unstuff(unread_, out);
    unread_ = unread_.subspan(got.read);
    scan_.bits = {out, 0, 0};
    scan_.end = out + got.written;
    for (int c = 0; c < scan_.component_count; ++c) scan_.components[c].predictor = 0;
    until_restart_ = restart_interval_;
    looked_through_ = 0;
}

// Whether the bytes before this interval are the marker before this MCU.
bool ScanCursor::follows_marker() const {
    const int marker = first_restart_marker + (mcu_ / restart_interval_ - 1) % restart_markers;
    return byte_ >= marker_bytes && data_[byte_ - 2] == 0xFF && data_[byte_ - 1] == marker;
}

void ScanCursor::cross_restart() {
    if (restart_interval_ == 0 || until_restart_ > 0) return;
    const std::ptrdiff_t unused = scan_.end - scan_.bits.next + scan_.bits.filled / 8;
    if (unused != 0 || unread_.size() < marker_bytes) throw Surprise{};
    unread_ = unread_.subspan(marker_bytes);
    byte_ = static_cast<std::size_t>(unread_.data() - data_.data());
    if (!follows_marker()) throw Surprise{};
    read_interval();
}

// Passes over `mcus` MCUs, or decodes them from `column` on where that is not negative.
void ScanCursor::run(int mcus, int column) {
    const BaselineKernel& kernel = baseline_kernel();
    while (mcus > 0) {
        cross_restart();
        const int count = restart_interval_ > 0 ? std::min(mcus, until_restart_) : mcus;
        const bool good =
            column < 0 ? kernel.skip_mcus(scan_, count) : kernel.decode_mcus(scan_, column, count);
        if (!good) throw Surprise{};
        mcus -= count;
        mcu_ += count;
        until_restart_ -= count;
        if (column >= 0) column += count;
    }
}

bool ScanCursor::is_at(const SeekPoint& point) const {
    const std::ptrdiff_t left = (scan_.end - scan_.bits.next) * 8 + scan_.bits.filled;
    bool same = unread_.empty() && left == (point.bits_used() == 0 ? 0 : 8 - point.bits_used());
    for (int c = 0; c < scan_.component_count; ++c)
        same = same && scan_.components[c].predictor == point.predictors[c];
    return same;
}

SeekPoint ScanCursor::here() {
    const std::uint8_t* const begin = unstuffed_.data();
    const auto bits = static_cast<std::size_t>((scan_.bits.next - begin) * 8 - scan_.bits.filled);
    const std::size_t behind = bits / 8;
    // A zero was behind each.
    const auto stuffed = std::count(begin + looked_through_, begin + behind, std::uint8_t{0xFF});
    byte_ += behind - looked_through_ + static_cast<std::size_t>(stuffed);
    looked_through_ = behind;
    if (byte_ >= most_seekable_bytes) throw Surprise{};
    SeekPoint point{static_cast<std::uint32_t>(byte_ * 8 + bits % 8), {}};
    for (int c = 0; c < scan_.component_count; ++c)
        point.predictors[c] = static_cast<std::int16_t>(scan_.components[c].predictor);
    return point;
}

}  // namespace hpcai500::baseline
