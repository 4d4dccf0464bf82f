#include "climate_storage.h"

#include <cstddef>
#include <sstream>
#include <stdexcept>

namespace hpcai500 {
namespace {

// 4 TiB of values in a file: above it a shape is a mistake, and products of extents could overflow.
constexpr std::int64_t most_values = std::int64_t{1} << 40;
// HDF5 keeps the size of a chunk in 32 bits.
constexpr std::int64_t most_chunk_values = (std::int64_t{1} << 32) / value_bytes - 1;

std::string text(const Extents& extents) {
    std::ostringstream result;
    result << '(' << extents[0] << ", " << extents[1] << ", " << extents[2] << ", " << extents[3] << ')';
    return result.str();
}

[[noreturn]] void refuse(const ClimateFile& file, const std::string& what) {
    throw std::invalid_argument(file.path + ": " + what);
}

void check_extents(const ClimateFile& file, const char* name, const Extents& extents, std::int64_t most) {
    std::int64_t values = 1;
    for (const std::int64_t extent : extents) {
        if (extent < 1 || extent > most / values)
            refuse(file, std::string(name) + " must have extents of at least 1 and at most " +
                             std::to_string(most) + " values in all, got " + text(extents));
        values *= extent;
    }
}

void check_table(const ClimateFile& file, const char* name, std::size_t entries, std::size_t expected) {
    if (entries != expected)
        refuse(file, std::string(name) + " must have an entry for each of " + std::to_string(expected) +
                         " chunks, got " + std::to_string(entries));
}

}  // namespace

ClimateStorage::ClimateStorage(ClimateFile file) : file_(std::move(file)) {
    if (file_.path.empty() || file_.path.find('\0') != std::string::npos)
        throw std::invalid_argument("a path must not be empty or have a zero byte inside");
    check_extents(file_, "shape", file_.shape, most_values);
    if (file_.chunk) check_extents(file_, "chunk", *file_.chunk, most_chunk_values);
    if (file_.filters.size() > (chunked() ? most_filters : 0))
        refuse(file_, std::to_string(file_.filters.size()) + " filters: HDF5 allows " +
                          std::to_string(most_filters) + " on chunks, and none on one piece");
    chunk_ = file_.chunk.value_or(file_.shape);
    std::size_t cells = 1;
    for (std::size_t axis = 0; axis < 4; ++axis) {
        grid_[axis] = (file_.shape[axis] + chunk_[axis] - 1) / chunk_[axis];
        cells *= static_cast<std::size_t>(grid_[axis]);
    }
    const std::size_t entries = chunked() ? cells : 0;
    check_table(file_, "addresses", file_.addresses.size(), entries);
    check_table(file_, "sizes", file_.sizes.size(), entries);
    check_table(file_, "masks", file_.masks.size(), entries);
}

StoredChunk ClimateStorage::stored(const Extents& cell) const {
    const auto raw_bytes = static_cast<std::uint64_t>(chunk_values()) * value_bytes;
    if (!chunked()) return {file_.offset, raw_bytes, 0, false};
    const auto index =
        static_cast<std::size_t>(((cell[0] * grid_[1] + cell[1]) * grid_[2] + cell[2]) * grid_[3] + cell[3]);
    const std::uint32_t mask = file_.masks[index];
    bool filtered = false;
    for (std::size_t i = 0; i < filters().size(); ++i) filtered = filtered || (mask >> i & 1) == 0;
    return {file_.addresses[index], file_.sizes[index], mask, filtered};
}

}  // namespace hpcai500
