// Where the images of a climate year lie in its HDF5 file: what Python has taken from HDF5 once, checked.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chunk_filters.h"

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

}  // namespace hpcai500
