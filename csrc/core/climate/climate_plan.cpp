#include "climate_plan.h"

#include <algorithm>
#include <tuple>

namespace hpcai500 {
namespace {

// Adds the pieces of one row of chunks: all cells that share their images.
class Planner {
  public:
    Planner(const ClimateStorage& file, std::size_t number, std::span<const ImageRequest> requests,
            std::size_t origin, std::span<const int> channels, const ColumnCrop& crop,
            std::vector<Piece>& pieces)
        : file_(file),
          number_(number),
          requests_(requests),
          origin_(origin),
          channels_(channels),
          crop_(crop),
          pieces_(pieces) {}

    void add_cells() {
        const std::int64_t row_of_chunks = requests_.front().image / file_.chunk()[0];
        const Extents& grid = file_.grid();
        std::vector<bool> wanted(static_cast<std::size_t>(grid[1])), visible;
        for (const int channel : channels_)
            wanted[static_cast<std::size_t>(channel / file_.chunk()[1])] = true;
        for (std::int64_t x = 0; x < grid[3]; ++x) visible.push_back(is_visible(x));
        for (std::int64_t c = 0; c < grid[1]; ++c) {
            if (!wanted[static_cast<std::size_t>(c)]) continue;
            for (std::int64_t y = 0; y < grid[2]; ++y)
                for (std::int64_t x = 0; x < grid[3]; ++x)
                    if (visible[static_cast<std::size_t>(x)]) add_cell({row_of_chunks, c, y, x});
        }
    }

  private:
    bool is_visible(std::int64_t column_of_chunks) const {
        const std::int64_t begin = column_of_chunks * file_.chunk()[3];
        const std::int64_t end = std::min(begin + file_.chunk()[3], file_.shape()[3]);
        return std::any_of(requests_.begin(), requests_.end(), [&](const ImageRequest& request) {
            return !ColumnRuns(begin, end, file_.shape()[3], request.roll, crop_).runs().empty();
        });
    }

    void add_cell(const Extents& cell) {
        const StoredChunk stored = file_.stored(cell);
        const std::int64_t rows = std::min(file_.chunk()[2], file_.shape()[2] - cell[2] * file_.chunk()[2]);
        if (stored.filtered || stored.absent()) {
            pieces_.push_back(
                {number_, cell, origin_, origin_ + requests_.size(), 0, channels_.size(), 0, rows});
            return;
        }
        const std::int64_t row_bytes = file_.chunk()[3] * static_cast<std::int64_t>(value_bytes);
        const std::int64_t tile_rows = std::max<std::int64_t>(1, tile_bytes / row_bytes);
        for (std::size_t request = origin_; request < origin_ + requests_.size(); ++request)
            for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
                if (channels_[channel] / file_.chunk()[1] != cell[1]) continue;
                for (std::int64_t row = 0; row < rows; row += tile_rows)
                    pieces_.push_back({number_, cell, request, request + 1, channel, channel + 1, row,
                                       std::min(row + tile_rows, rows)});
            }
    }

    const ClimateStorage& file_;
    const std::size_t number_;
    const std::span<const ImageRequest> requests_;
    const std::size_t origin_;
    const std::span<const int> channels_;
    const ColumnCrop& crop_;
    std::vector<Piece>& pieces_;
};

}  // namespace

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
        const auto number = static_cast<std::size_t>(requests[first].file);
        const std::span<const ImageRequest> together(requests.data() + first, last - first);
        Planner(files[number], number, together, first, channels, crop, pieces).add_cells();
        first = last;
    }
    return pieces;
}

}  // namespace hpcai500
