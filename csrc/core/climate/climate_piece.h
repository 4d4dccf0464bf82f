// Does one piece of a plan: reads the file, undoes the filters, converts the values into the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "chunk_filters.h"
#include "climate_plan.h"
#include "convert_kernel.h"
#include "core/grow_buffer.h"

namespace hpcai500 {

/// How stored values become output. `scale` and `bias` have an entry for each wanted channel.
struct Conversion {
    Target target = Target::copied;
    std::size_t item_bytes = 4;  ///< of an output value
    std::vector<float> scale, bias;
};

/// A piece, and all that doing it needs to know.
struct PieceJob {
    const ClimateStorage& storage;
    int descriptor;  ///< of the open file
    const Piece& piece;
    std::span<const ImageRequest> requests;  ///< in the order of the plan
    std::span<const int> channels;
    const ColumnCrop& crop;
    const Conversion& conversion;
    std::uint8_t* out;  ///< images of (channels, rows, crop.width)
};

/// One object per thread, reused for all pieces. Its memory is a tile, or three times the largest chunk.
class PieceReader {
  public:
    /// True when the piece had filters to undo. Throws ClimateError where the file ends too early, cannot be
    /// read, or holds damaged data.
    bool read(const PieceJob& job);

  private:
    void read_rows(const PieceJob& job, const StoredChunk& stored);
    void read_chunk(const PieceJob& job, const StoredChunk& stored);
    void fill_absent(const PieceJob& job);
    std::span<const std::uint8_t> bytes_at(const PieceJob& job, std::uint64_t address, std::uint64_t count);

    GrowBuffer<std::uint8_t> stored_bytes_;
    GrowBuffer<std::uint8_t> zeros_;
    ChunkDecoder decoder_;
};

}  // namespace hpcai500
