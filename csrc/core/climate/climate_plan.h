// Where the images of a climate year lie in its HDF5 file (what Python has taken from HDF5 once, checked),
// and what must be done to read some: pieces that any thread can do, each chunk in one of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "filters.h"

namespace hpcai500 {

/// Extents or a position in the order images, channels, rows (y), columns (x).
using Extents = std::array<std::int64_t, 4>;

/// One file of float32 images. The tables hold one entry for each chunk, in C order of the grid of chunks.
struct ClimateFile {
    /// The address of a chunk that was never written: its values are zero.
    static constexpr std::uint64_t absent = ~std::uint64_t{0};

    std::string path;
    Extents shape{};
    std::uint64_t offset = absent;  ///< of the first value, where `chunk` is empty
    std::optional<Extents> chunk;   ///< extents of a chunk; empty when all values are in one piece
    std::vector<Filter> filters;    ///< in the order of writing
    std::vector<std::uint64_t> addresses, sizes;
    std::vector<std::uint32_t> masks;  ///< bit i: filter i was left out
};

/// One stored chunk. A dataset in one piece is a single chunk without filters.
struct StoredChunk {
    std::uint64_t address, bytes;
    std::uint32_t mask;
    bool filtered;  ///< at least one filter was applied
    bool absent() const { return address == ClimateFile::absent; }
};

/// A ClimateFile whose tables fit together: nothing in it is trusted beyond that.
class ClimateStorage {
  public:
    /// Throws std::invalid_argument when extents, grid and tables do not fit together, or demand the absurd.
    explicit ClimateStorage(ClimateFile file);

    const std::string& path() const { return file_.path; }
    const Extents& shape() const { return file_.shape; }
    const Extents& chunk() const { return chunk_; }
    const Extents& grid() const { return grid_; }
    const std::vector<Filter>& filters() const { return file_.filters; }
    bool chunked() const { return file_.chunk.has_value(); }
    /// Values in a chunk, also in one that reaches beyond the dataset's edge.
    std::int64_t chunk_values() const { return chunk_[0] * chunk_[1] * chunk_[2] * chunk_[3]; }

    StoredChunk stored(const Extents& cell) const;

  private:
    ClimateFile file_;
    Extents chunk_{}, grid_{};
};

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
