#include "climate_plan.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <tuple>

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

// Adds the pieces of one cell, from which `whole` takes everything.
void add_cell(const ClimateStorage& file, const Piece& whole, std::span<const int> channels,
              std::vector<Piece>& pieces) {
    const StoredChunk stored = file.stored(whole.cell);
    if (stored.filtered || stored.absent()) return pieces.push_back(whole);
    const std::int64_t row_bytes = file.chunk()[3] * static_cast<std::int64_t>(value_bytes);
    const std::int64_t tile_rows = std::max<std::int64_t>(1, tile_bytes / row_bytes);
    for (std::size_t request = whole.first; request < whole.last; ++request)
        for (std::size_t channel = 0; channel < channels.size(); ++channel) {
            if (channels[channel] / file.chunk()[1] != whole.cell[1]) continue;
            for (std::int64_t row = 0; row < whole.last_row; row += tile_rows)
                pieces.push_back({whole.file, whole.cell, request, request + 1, channel, channel + 1, row,
                                  std::min(row + tile_rows, whole.last_row)});
        }
}

// Adds the pieces of one row of chunks, whose images requests [first, last) take: all cells that they share.
void add_cells(const ClimateStorage& file, std::span<const ImageRequest> requests, std::size_t first,
               std::size_t last, std::span<const int> channels, const ColumnCrop& crop,
               std::vector<Piece>& pieces) {
    const Extents &shape = file.shape(), &chunk = file.chunk(), &grid = file.grid();
    const auto is_visible = [&](std::int64_t x) {
        const std::int64_t begin = x * chunk[3], end = std::min(begin + chunk[3], shape[3]);
        const auto together = requests.subspan(first, last - first);
        return std::any_of(together.begin(), together.end(), [&](const ImageRequest& request) {
            return !ColumnRuns(begin, end, shape[3], request.roll, crop).runs().empty();
        });
    };
    std::vector<bool> wanted(static_cast<std::size_t>(grid[1])), visible;
    for (const int channel : channels) wanted[static_cast<std::size_t>(channel / chunk[1])] = true;
    for (std::int64_t x = 0; x < grid[3]; ++x) visible.push_back(is_visible(x));
    Piece whole{static_cast<std::size_t>(requests[first].file), {}, first, last, 0, channels.size(), 0, 0};
    for (std::int64_t c = 0; c < grid[1]; ++c) {
        if (!wanted[static_cast<std::size_t>(c)]) continue;
        for (std::int64_t y = 0; y < grid[2]; ++y)
            for (std::int64_t x = 0; x < grid[3]; ++x) {
                if (!visible[static_cast<std::size_t>(x)]) continue;
                whole.cell = {requests[first].image / chunk[0], c, y, x};
                whole.last_row = std::min(chunk[2], shape[2] - y * chunk[2]);
                add_cell(file, whole, channels, pieces);
            }
    }
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

ColumnRuns::ColumnRuns(std::int64_t begin, std::int64_t end, std::int64_t columns, std::int64_t roll,
                       const ColumnCrop& crop) {
    const std::int64_t count = end - begin;
    const std::int64_t rolled = begin + roll < columns ? begin + roll : begin + roll - columns;
    const std::int64_t before_cut = std::min(count, columns - rolled);
    add(0, rolled, rolled + before_cut, crop);
    add(before_cut, 0, count - before_cut, crop);
}

void ColumnRuns::add(std::int64_t from, std::int64_t rolled_begin, std::int64_t rolled_end,
                     const ColumnCrop& crop) {
    const std::int64_t begin = std::max(rolled_begin, crop.left);
    const std::int64_t end = std::min(rolled_end, crop.left + crop.width);
    if (begin >= end) return;
    runs_[count_++] = {from + begin - rolled_begin, begin - crop.left, end - begin};
}

std::vector<Piece> make_plan(const std::vector<ClimateStorage>& files, std::vector<ImageRequest>& requests,
                             std::span<const int> channels, const ColumnCrop& crop) {
    const auto row_of_chunks = [&](const ImageRequest& request) {
        return request.image / files[static_cast<std::size_t>(request.file)].chunk()[0];
    };
    // Images of one chunk come together, and files are read from front to back.
    std::stable_sort(requests.begin(), requests.end(), [&](const ImageRequest& a, const ImageRequest& b) {
        return std::tuple(a.file, row_of_chunks(a)) < std::tuple(b.file, row_of_chunks(b));
    });
    std::vector<Piece> pieces;
    for (std::size_t first = 0; first < requests.size();) {
        std::size_t last = first + 1;
        while (last < requests.size() && requests[last].file == requests[first].file &&
               row_of_chunks(requests[last]) == row_of_chunks(requests[first]))
            ++last;
        const auto& file = files[static_cast<std::size_t>(requests[first].file)];
        add_cells(file, requests, first, last, channels, crop, pieces);
        first = last;
    }
    return pieces;
}

}  // namespace hpcai500
