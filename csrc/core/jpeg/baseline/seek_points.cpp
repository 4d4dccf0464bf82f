#include "seek_points.h"

#include <algorithm>

#include "core/little_endian.h"

namespace hpcai500::baseline {
namespace {

// A 25th of a file: 4 %, with what an index says of it beside its points (seek_index_format.h).
constexpr std::size_t file_bytes_to_one = 25, bytes_beside = 24 + SeekPoints::header_bytes;
// Closer points would save the passing of fewer MCUs than a jump takes time.
constexpr int least_interval = 4;

}  // namespace

SeekPoints::SeekPoints(std::span<const std::uint8_t> packed) {
    if (packed.size() < header_bytes) return;
    const std::uint32_t interval = load_little<std::uint32_t>(packed.data());
    if (interval == 0 || interval > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) return;
    interval_ = static_cast<int>(interval);
    packed_ = packed;
    stored_ = packed.subspan(header_bytes);
}

bool SeekPoints::suit(int mcus, int restart_interval) const {
    if (restart_interval > 0 && interval_ % restart_interval != 0) return false;
    return stored_.size() == static_cast<std::size_t>(at_or_behind(mcus)) * point_bytes;
}

SeekPoint SeekPoints::operator[](int number) const {
    if (number == 0) return {};
    const std::uint8_t* at = stored_.data() + static_cast<std::size_t>(number - 1) * point_bytes;
    SeekPoint point{load_little<std::uint32_t>(at), {}};
    for (int c = 0; c < 3; ++c)
        point.predictors[c] = static_cast<std::int16_t>(load_little<std::uint16_t>(at + 4 + 2 * c));
    return point;
}

int seek_interval(std::size_t file_bytes, int mcus, int restart_interval) {
    const std::size_t room = file_bytes / file_bytes_to_one;
    const std::size_t points =
        room < bytes_beside + SeekPoints::point_bytes ? 1 : (room - bytes_beside) / SeekPoints::point_bytes;
    const auto enough = static_cast<int>((static_cast<std::size_t>(mcus) + points - 1) / points);
    const int interval = std::max(least_interval, enough);
    if (restart_interval == 0) return interval;
    return (interval + restart_interval - 1) / restart_interval * restart_interval;
}

SeekPointPacker::SeekPointPacker(int interval) {
    append_little(packed_, static_cast<std::uint32_t>(interval));
}

void SeekPointPacker::add(const SeekPoint& point) {
    append_little(packed_, point.bit);
    for (const std::int16_t predictor : point.predictors)
        append_little(packed_, static_cast<std::uint16_t>(predictor));
}

}  // namespace hpcai500::baseline
