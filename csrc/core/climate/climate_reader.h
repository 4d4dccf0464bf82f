// Images of climate years, read by chunk address: without HDF5, and so without its global lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "climate_plan.h"
#include "convert_kernel.h"
#include "core/failure.h"
#include "core/files.h"
#include "core/grow_buffer.h"
#include "core/jpeg/spec.h"
#include "core/threads.h"

namespace hpcai500 {

/// Where reading failed. A file that cannot even be opened has no image and no channel.
struct ClimatePlace {
    std::size_t file = 0;               ///< in the order given to the reader
    std::int64_t image = -1;            ///< in its file
    std::int64_t channel = -1;          ///< in its file
    std::optional<Extents> chunk = {};  ///< position in the grid of chunks; none where all is in one piece
};

/// Why an image could not be read, and where that was.
class ClimateError : public std::runtime_error {
  public:
    ClimateError(FailureKind kind, const std::string& reason, ClimatePlace place)
        : std::runtime_error(reason), kind_(kind), place_(std::move(place)) {}
    FailureKind kind() const noexcept { return kind_; }
    const ClimatePlace& place() const noexcept { return place_; }

  private:
    FailureKind kind_;
    ClimatePlace place_;
};

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

/// What an image becomes: `channels` in this order, normalised to (value - mean) / std, cast to `dtype`, and
/// of each row the columns [left, left + width).
struct ClimateSpec {
    std::vector<int> channels;
    std::vector<double> mean, std;  ///< of each wanted channel; both empty: values are cast only
    DType dtype = DType::float32;
    std::int64_t left = 0, width = 0;
    int threads = 1;
};

/// Shares [begin, end) of `total`.
struct Shares {
    std::size_t begin = 0, end = 1, total = 1;
};

/// Reads single images, or windows: runs of images that share chunks, so that no chunk is inflated twice.
///
/// The functions may be called from several threads, and then follow one another. Memory beside the caller's
/// is one PieceReader per thread. Not to be used after fork(): the child has no threads.
class ClimateReader {
  public:
    /// Opens all files and keeps them open. Throws std::invalid_argument, and ClimateError (unreadable) for a
    /// file that cannot be opened.
    ClimateReader(std::vector<ClimateFile> files, const ClimateSpec& spec);

    std::int64_t channels() const { return static_cast<std::int64_t>(spec_.channels.size()); }
    std::int64_t rows() const { return files_.front().shape()[2]; }
    /// Of a whole image, and of what is left of it.
    std::int64_t columns() const { return files_.front().shape()[3]; }
    std::int64_t width() const { return spec_.width; }
    std::size_t item_bytes() const { return conversion_.item_bytes; }
    /// Chunks whose filters were undone since the reader was made.
    std::uint64_t chunks_inflated() const { return chunks_inflated_; }

    /// Reads images into `out`, which has room for `places` images of (channels, rows, width). Where requests
    /// share a chunk it is inflated once. Throws std::invalid_argument, ClimateError.
    JobEnd read(std::vector<ImageRequest> requests, std::int64_t places, void* out,
                const WorkerPool::Stop& stop);

    /// Reads images [first, first + count) of a file, all columns of them, into `out`. Of the work, divided
    /// into equal shares, only those of `part` are done; all of them fill `out`, and inflate each chunk once.
    JobEnd read_window(std::int64_t file, std::int64_t first, std::int64_t count, const Shares& part,
                       void* out, const WorkerPool::Stop& stop);

    /// Copies images out of a window of `images`: request.image is the position in it, request.file is
    /// ignored.
    JobEnd take(const void* window, std::int64_t images, std::span<const ImageRequest> requests,
                std::int64_t places, void* out, const WorkerPool::Stop& stop);

    /// Stops the threads after the pieces they are working on. May be called twice.
    void close() { pool_.close(); }

  private:
    JobEnd do_pieces(std::span<const Piece> pieces, std::span<const ImageRequest> requests,
                     const ColumnCrop& crop, void* out, const WorkerPool::Stop& stop);

    const ClimateSpec spec_;
    std::vector<ClimateStorage> files_;
    std::vector<Descriptor> descriptors_;
    Conversion conversion_;
    std::vector<std::unique_ptr<PieceReader>> readers_;  ///< one per thread of the pool
    std::atomic<std::uint64_t> chunks_inflated_{0};
    WorkerPool pool_;
};

}  // namespace hpcai500
