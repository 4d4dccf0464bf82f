#include "climate_piece.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <system_error>

#include "climate_error.h"

namespace hpcai500 {
namespace {

// Shorter runs than this stay in the cache: bypassing it pays for whole lines only.
constexpr std::int64_t least_streamed_bytes = 1024;

// Values of one channel of one image within a chunk, from a piece's first row on.
struct ChunkRows {
    const std::uint8_t* first;
    SourceForm form;
    std::int64_t plane_stride;  ///< values in the whole chunk, for SourceForm::planes
    std::int64_t row_values;    ///< from a row to the next; 0 repeats one row
};

[[noreturn]] void unreadable(const char* action) {
    throw DecodeError(FailureKind::unreadable,
                      std::string(action) + ": " + std::generic_category().message(errno));
}

[[noreturn]] void ends_early(std::uint64_t size, std::uint64_t address, std::uint64_t count) {
    throw DecodeError(FailureKind::truncated, "the file ends at byte " + std::to_string(size) + ", and " +
                                                  std::to_string(count) + " bytes at " +
                                                  std::to_string(address) + " are needed");
}

std::uint64_t size_of(int descriptor) {
    struct stat status{};
    if (::fstat(descriptor, &status) != 0) unreadable("cannot examine the file");
    return static_cast<std::uint64_t>(status.st_size);
}

bool in_cell(const PieceJob& job, std::size_t channel) {
    return job.channels[channel] / job.storage.chunk()[1] == job.piece.cell[1];
}

// Index, within a chunk, of the first value of a channel of an image.
std::int64_t plane_start(const PieceJob& job, const ImageRequest& request, std::size_t channel) {
    const Extents& chunk = job.storage.chunk();
    const std::int64_t image = request.image % chunk[0], plane = job.channels[channel] % chunk[1];
    return (image * chunk[1] + plane) * chunk[2] * chunk[3];
}

void convert_rows(const PieceJob& job, const ImageRequest& request, std::size_t channel,
                  const ChunkRows& rows) {
    const Extents& shape = job.storage.shape();
    const Extents& chunk = job.storage.chunk();
    const std::int64_t begin = job.piece.cell[3] * chunk[3], end = std::min(begin + chunk[3], shape[3]);
    const ColumnRuns columns(begin, end, shape[3], request.roll, job.crop);
    const auto item = static_cast<std::int64_t>(job.conversion.item_bytes);
    const std::int64_t channels = static_cast<std::int64_t>(job.channels.size());
    const std::int64_t top = job.piece.cell[2] * chunk[2] + job.piece.first_row;
    const std::int64_t first_row =
        (request.place * channels + static_cast<std::int64_t>(channel)) * shape[2] + top;
    std::uint8_t* out = job.out + first_row * job.crop.width * item;
    const std::int64_t source_item = rows.form == SourceForm::planes ? 1 : 4;

    const auto convert =
        convert_kernel().convert[static_cast<int>(job.conversion.target)][static_cast<int>(rows.form)];
    const std::int64_t count = job.piece.last_row - job.piece.first_row;
    for (const ColumnRun& run : columns.runs()) {
        // Rows that follow one another on both sides are one run.
        const bool joined = run.count == rows.row_values && run.count == job.crop.width;
        const std::int64_t values = joined ? run.count * count : run.count;
        ConvertRun part{rows.first + run.from * source_item,
                        static_cast<long>(rows.plane_stride),
                        out + run.to * item,
                        static_cast<long>(values),
                        job.conversion.scale[channel],
                        job.conversion.bias[channel],
                        values * item >= least_streamed_bytes};
        for (std::int64_t row = 0; row < (joined ? 1 : count); ++row) {
            convert(part);
            part.source += rows.row_values * source_item;
            part.out += job.crop.width * item;
        }
    }
}

template <class Do>
void for_each_plane(const PieceJob& job, Do&& action) {
    for (std::size_t request = job.piece.first; request < job.piece.last; ++request)
        for (std::size_t channel = job.piece.first_channel; channel < job.piece.last_channel; ++channel)
            if (in_cell(job, channel)) action(job.requests[request], channel);
}

ClimatePlace place_of(const PieceJob& job) {
    ClimatePlace place{job.piece.file, job.requests[job.piece.first].image, -1, {}};
    for (std::size_t channel = job.piece.last_channel; channel-- > job.piece.first_channel;)
        if (in_cell(job, channel)) place.channel = job.channels[channel];
    if (job.storage.chunked()) place.chunk = job.piece.cell;
    return place;
}

}  // namespace

bool PieceReader::read(const PieceJob& job) {
    try {
        const StoredChunk stored = job.storage.stored(job.piece.cell);
        if (stored.absent()) {
            fill_absent(job);
        } else if (stored.filtered) {
            read_chunk(job, stored);
        } else {
            read_rows(job, stored);
        }
        convert_kernel().publish();
        return stored.filtered && !stored.absent();
    } catch (const DecodeError& error) {
        throw ClimateError(error.kind(), error.what(), place_of(job));
    }
}

std::span<const std::uint8_t> PieceReader::bytes_at(const PieceJob& job, std::uint64_t address,
                                                    std::uint64_t count) {
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
    // Read and not mapped: of a mapping, a file that someone truncates meanwhile would kill the process.
    if (address > most || count > most - address) ends_early(size_of(job.descriptor), address, count);
    std::uint8_t* bytes = stored_bytes_.reserve(count);
    std::uint64_t done = 0;
    while (done < count) {
        const ssize_t got =
            ::pread(job.descriptor, bytes + done, count - done, static_cast<off_t>(address + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) unreadable("cannot read the file");
        if (got == 0) ends_early(size_of(job.descriptor), address, count);
        done += static_cast<std::uint64_t>(got);
    }
    return {bytes, count};
}

void PieceReader::read_rows(const PieceJob& job, const StoredChunk& stored) {
    const auto chunk_bytes = static_cast<std::uint64_t>(job.storage.chunk_values()) * value_bytes;
    if (stored.bytes != chunk_bytes)
        throw DecodeError(FailureKind::corrupt, "the chunk has " + std::to_string(stored.bytes) +
                                                    " bytes instead of " + std::to_string(chunk_bytes));
    const std::int64_t row_values = job.storage.chunk()[3];
    const std::int64_t rows = job.piece.last_row - job.piece.first_row;
    for_each_plane(job, [&](const ImageRequest& request, std::size_t channel) {
        const std::int64_t start = plane_start(job, request, channel) + job.piece.first_row * row_values;
        const auto skipped = static_cast<std::uint64_t>(start) * value_bytes;
        const auto count = static_cast<std::uint64_t>(rows * row_values) * value_bytes;
        if (stored.address > std::numeric_limits<std::uint64_t>::max() - skipped)
            ends_early(size_of(job.descriptor), stored.address, chunk_bytes);
        const auto bytes = bytes_at(job, stored.address + skipped, count);
        convert_rows(job, request, channel, {bytes.data(), SourceForm::values, 0, row_values});
    });
}

void PieceReader::read_chunk(const PieceJob& job, const StoredChunk& stored) {
    const std::int64_t values = job.storage.chunk_values();
    const auto chunk_bytes = static_cast<std::uint64_t>(values) * value_bytes;
    // Before memory is taken for it: the size is what the file claims.
    if (stored.bytes > 8 * most_stored_bytes(chunk_bytes))
        throw DecodeError(FailureKind::corrupt, "the chunk claims " + std::to_string(stored.bytes) +
                                                    " stored bytes for " + std::to_string(chunk_bytes));
    const std::uint64_t size = size_of(job.descriptor);
    if (stored.address > size || stored.bytes > size - stored.address)
        ends_early(size, stored.address, stored.bytes);
    const auto bytes = bytes_at(job, stored.address, stored.bytes);
    const DecodedChunk chunk =
        decoder_.decode(bytes, job.storage.filters(), stored.mask, static_cast<std::size_t>(values));
    const std::int64_t row_values = job.storage.chunk()[3];
    for_each_plane(job, [&](const ImageRequest& request, std::size_t channel) {
        const std::int64_t start = plane_start(job, request, channel);
        if (chunk.shuffled) {
            convert_rows(job, request, channel,
                         {chunk.bytes + start, SourceForm::planes, values, row_values});
        } else {
            const std::uint8_t* first = chunk.bytes + start * static_cast<std::int64_t>(value_bytes);
            convert_rows(job, request, channel, {first, SourceForm::values, 0, row_values});
        }
    });
}

void PieceReader::fill_absent(const PieceJob& job) {
    const auto row_bytes = static_cast<std::size_t>(job.storage.chunk()[3]) * value_bytes;
    const std::uint8_t* zeros = zeros_.reserve(row_bytes);
    for_each_plane(job, [&](const ImageRequest& request, std::size_t channel) {
        convert_rows(job, request, channel, {zeros, SourceForm::values, 0, 0});
    });
}

}  // namespace hpcai500
