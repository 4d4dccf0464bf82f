// What must be done to read some images: pieces that any thread can do, each chunk in one of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "climate_storage.h"

namespace hpcai500 {

/// One image to read, and where it goes.
struct ImageRequest {
    std::int64_t file, image;
    std::int64_t place;  ///< index in the output
    std::int64_t roll;   ///< columns that the image is moved to the right, around the globe; in [0, columns)
};

/// The columns of an image that are wanted, after its roll.
struct ColumnCrop {
    std::int64_t left, width;
};

/// Columns that lie together both in a stored row and in the output's row.
struct ColumnRun {
    std::int64_t from, to, count;
};

/// At most two runs: a roll cuts a row once.
class ColumnRuns {
  public:
    /// Of stored columns [begin, end) of `columns`, what the roll and the crop leave, and where it goes.
    /// `from` counts from `begin`.
    ColumnRuns(std::int64_t begin, std::int64_t end, std::int64_t columns, std::int64_t roll,
               const ColumnCrop& crop);
    std::span<const ColumnRun> runs() const { return {runs_.data(), count_}; }

  private:
    void add(std::int64_t from, std::int64_t rolled_begin, std::int64_t rolled_end, const ColumnCrop& crop);

    std::array<ColumnRun, 2> runs_{};
    std::size_t count_ = 0;
};

/// A chunk as a whole, or some rows of one channel of one image where no filter stands in the way.
struct Piece {
    std::size_t file;
    Extents cell;
    std::size_t first, last;  ///< requests [first, last) take from it
    std::size_t first_channel,
        last_channel;                  ///< of the wanted channels; those that the cell has take from it
    std::int64_t first_row, last_row;  ///< within the chunk
};

/// Bytes that are read together where no filter stands in the way: they fit into a core's second-level cache
/// beside what they become.
inline constexpr std::int64_t tile_bytes = 256 * 1024;

/// Brings the requests into the order of their chunks and makes the pieces. No chunk is in two pieces with
/// filters to undo. Requests and channels must be in range.
std::vector<Piece> make_plan(const std::vector<ClimateStorage>& files, std::vector<ImageRequest>& requests,
                             std::span<const int> channels, const ColumnCrop& crop);

}  // namespace hpcai500
