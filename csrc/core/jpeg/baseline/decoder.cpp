#include "decoder.h"

#include <algorithm>
#include <cstring>

namespace hpcai500::baseline {
namespace {

constexpr std::uint8_t first_restart_marker = 0xD0;
constexpr int restart_markers = 8;
constexpr std::size_t marker_bytes = 2;

constexpr std::size_t line_bytes = 64;

constexpr int divide_up(int value, int by) {
    return (value + by - 1) / by;
}

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

bool Decoder::open(const Scan& scan, const SeekPoints& points) {
    cursor_.open(scan.data, scan.component_count, scan.restart_interval);
    for (int c = 0; c < scan.component_count; ++c) {
        const ScanComponent& from = scan.components[c];
        Component& component = cursor_.component(c);
        component.dc = dc_.find(from.dc);
        component.ac = ac_.find(from.ac);
        if (component.dc == nullptr || component.ac == nullptr) return false;
        std::memcpy(quantisation_[c], from.quantisation, sizeof from.quantisation);
        component.quantisation = quantisation_[c];
        component.across = c == 0 ? scan.across : 1;
        component.down = c == 0 ? scan.down : 1;
    }
    across_ = scan.across;
    down_ = scan.down;
    mcus_across_ = divide_up(scan.width, mcu_width());
    mcus_down_ = divide_up(scan.height, mcu_height());
    points_ = points;
    stretch_end_ = 0;
    return !points.any() || points.suit(mcus(), scan.restart_interval);
}

// A block takes two bits at least, one for its DC difference and one for its end. A few bytes may claim any
// size: memory is for those that can have it, at most 256 bytes of samples for one of data (docs/fuzzing.md).
bool Decoder::may_hold(int mcus) const {
    int blocks = 0;
    for (int c = 0; c < cursor_.component_count(); ++c)
        blocks += cursor_.component(c).across * cursor_.component(c).down;
    return static_cast<std::uint64_t>(cursor_.data_bytes()) * 8 >=
           std::uint64_t{2} * static_cast<std::uint64_t>(blocks) * static_cast<std::uint64_t>(mcus);
}

void Decoder::begin(const SampleWindow& window) {
    left_ = window.left / mcu_width();
    right_ = std::min(mcus_across_, divide_up(window.right, mcu_width()));
    next_row_ = stretch_bottom_ = window.top / mcu_height();
    bottom_ = std::min(mcus_down_, divide_up(window.bottom, mcu_height()));
    if (!may_hold(kept_until(bottom_ - 1))) throw Surprise{};
    // A span of rows may begin in the last row of an MCU, and end in the first of another.
    capacity_ = std::min(bottom_ - next_row_, (window.held_rows + mcu_height() - 2) / mcu_height() + 1);
    for (int c = 0; c < cursor_.component_count(); ++c) {
        Component& component = cursor_.component(c);
        const auto columns = static_cast<std::size_t>((right_ - left_) * component.across * 8);
        // What is read behind a row's end is never used. Rows a multiple of 4 KB apart would share a place in
        // the cache.
        const std::size_t stride = (columns + line_bytes - 1) / line_bytes * line_bytes + line_bytes;
        component.stride = static_cast<std::ptrdiff_t>(stride);
        planes_[c].reserve(stride * static_cast<std::size_t>(capacity_ * component.down * 8) + line_bytes);
    }
    if (!points_.any()) cursor_.start();
}

// Jumps to the point before the next row, and finds out how far there is none to jump to.
void Decoder::start_stretch() {
    const int point = points_.at_or_before(kept_from(next_row_));
    stretch_bottom_ = next_row_ + 1;
    while (stretch_bottom_ < bottom_ && points_.at_or_before(kept_from(stretch_bottom_)) <=
                                            points_.at_or_behind(kept_until(stretch_bottom_ - 1)))
        ++stretch_bottom_;
    last_point_ = points_.at_or_behind(kept_until(stretch_bottom_ - 1));
    // Stretches that overlap would read the same data again and again.
    if (points_[point].byte() < stretch_end_) throw Surprise{};
    stretch_end_ = points_[last_point_].byte();
    cursor_.start(point * points_.interval(), points_[point], cursor_.end_before(points_[last_point_]));
}

// A point that is wrong leads to another place, or to other predictors, than the next one says.
void Decoder::end_stretch() {
    const int end = std::min(last_point_ * points_.interval(), mcus());
    cursor_.pass(end - cursor_.mcu());
    if (end < mcus()) cursor_.cross_restart();
    if (!cursor_.is_at(points_[last_point_])) throw Surprise{};
}

void Decoder::decode_row() {
    if (points_.any() && next_row_ == stretch_bottom_) start_stretch();
    const int slot = next_row_ % capacity_;
    for (int c = 0; c < cursor_.component_count(); ++c) {
        Component& component = cursor_.component(c);
        component.samples = planes_[c].data() + slot * component.down * 8 * component.stride;
    }
    cursor_.pass(kept_from(next_row_) - cursor_.mcu());
    cursor_.decode(right_ - left_);
    ++next_row_;
    if (points_.any() && next_row_ == stretch_bottom_) end_stretch();
}

void Decoder::require(int plane, int row) {
    const int mcu_row = row / (cursor_.component(plane).down * 8);
    while (next_row_ <= mcu_row) decode_row();
}

const std::uint8_t* Decoder::row(int plane, int row) const {
    const Component& component = cursor_.component(plane);
    const int rows = component.down * 8;
    const std::ptrdiff_t line = row / rows % capacity_ * rows + row % rows;
    return planes_[plane].data() + line * component.stride;
}

std::vector<std::uint8_t> Decoder::make_points(int interval) {
    std::vector<std::uint8_t> packed;
    append_little(packed, static_cast<std::uint32_t>(interval));
    cursor_.start();
    while (cursor_.mcu() < mcus()) {
        cursor_.pass(std::min(interval, mcus() - cursor_.mcu()));
        if (cursor_.mcu() < mcus()) cursor_.cross_restart();
        append_point(packed, cursor_.here());
    }
    return packed;
}

}  // namespace hpcai500::baseline
