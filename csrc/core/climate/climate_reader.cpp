#include "climate_reader.h"
#include "core/vectors/kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

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

[[noreturn]] void ends_early(std::uint64_t size, std::uint64_t address, std::uint64_t count) {
    throw DecodeError(FailureKind::truncated, "the file ends at byte " + std::to_string(size) + ", and " +
                                                  std::to_string(count) + " bytes at " +
                                                  std::to_string(address) + " are needed");
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
        kernels().convert.convert[static_cast<int>(job.conversion.target)][static_cast<int>(rows.form)];
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
        kernels().convert.publish();
        return stored.filtered && !stored.absent();
    } catch (const DecodeError& error) {
        throw ClimateError(error.kind(), error.what(), place_of(job));
    }
}

std::span<const std::uint8_t> PieceReader::bytes_at(const PieceJob& job, std::uint64_t address,
                                                    std::uint64_t count) {
    // Before memory is taken for them: address and count are what the file claims.
    const std::uint64_t size = size_of(job.descriptor);
    if (address > size || count > size - address) ends_early(size, address, count);
    // Read and not mapped: of a mapping, a file that someone truncates meanwhile would kill the process.
    const std::span<std::uint8_t> bytes{stored_bytes_.reserve(count), count};
    if (read_at(job.descriptor, address, bytes) < count) ends_early(size_of(job.descriptor), address, count);
    return bytes;
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

namespace {

void require(bool holds, const std::string& message) {
    if (!holds) throw std::invalid_argument(message);
}

std::string range(const char* what, std::int64_t end, std::int64_t got) {
    return std::string(what) + " must be in [0, " + std::to_string(end) + "), got " + std::to_string(got);
}

std::vector<ClimateStorage> checked_files(std::vector<ClimateFile> files) {
    require(!files.empty(), "files must hold at least one file, got none");
    std::vector<ClimateStorage> result;
    for (ClimateFile& file : files) {
        result.emplace_back(std::move(file));
        const Extents &first = result.front().shape(), &shape = result.back().shape();
        require(std::equal(shape.begin() + 1, shape.end(), first.begin() + 1),
                result.back().path() + ": its images differ in channels, rows or columns from those of " +
                    result.front().path());
    }
    return result;
}

void check_spec(const ClimateSpec& spec, const Extents& shape) {
    require(!spec.channels.empty(), "channels must name at least one channel, got none");
    for (const int channel : spec.channels)
        require(channel >= 0 && channel < shape[1], range("channels", shape[1], channel));
    require(spec.left >= 0 && spec.width >= 1 && spec.left <= shape[3] - spec.width,
            "left and width must lie in the " + std::to_string(shape[3]) + " columns of an image, got left " +
                std::to_string(spec.left) + " and width " + std::to_string(spec.width));
    require(spec.dtype != DType::uint8, "dtype must be float32, float16 or bfloat16");
    const std::size_t expected = spec.mean.empty() && spec.std.empty() ? 0 : spec.channels.size();
    require(spec.mean.size() == expected && spec.std.size() == expected,
            "mean and std must both have a value for each of the " + std::to_string(spec.channels.size()) +
                " channels, got " + std::to_string(spec.mean.size()) + " and " +
                std::to_string(spec.std.size()));
}

Conversion conversion_of(const ClimateSpec& spec) {
    Conversion result;
    result.item_bytes = item_size(spec.dtype);
    const bool normalised = !spec.mean.empty();
    switch (spec.dtype) {
        case DType::float16:
            result.target = Target::float16;
            break;
        case DType::bfloat16:
            result.target = Target::bfloat16;
            break;
        default:
            result.target = normalised ? Target::float32 : Target::copied;
    }
    for (std::size_t channel = 0; channel < spec.channels.size(); ++channel) {
        // Adding -0 changes no number, adding +0 would change -0.
        const auto factors = normalised ? normalisation(spec.mean[channel], spec.std[channel], channel)
                                        : Normalisation{1, -0.0f};
        result.scale.push_back(factors.scale);
        result.bias.push_back(factors.bias);
    }
    return result;
}

Descriptor open_year(const std::string& path, std::size_t number) try {
    return open_regular(path.c_str());
} catch (const DecodeError& error) {
    throw ClimateError(error.kind(), error.what(), {number, -1, -1, {}});
}

void check_requests(std::span<const ImageRequest> requests, std::int64_t places, std::int64_t columns) {
    std::vector<bool> taken(static_cast<std::size_t>(places));
    for (const ImageRequest& request : requests) {
        require(request.place >= 0 && request.place < places, range("places", places, request.place));
        // Two threads would write into one image.
        require(!taken[static_cast<std::size_t>(request.place)],
                "places must differ, got " + std::to_string(request.place) + " twice");
        taken[static_cast<std::size_t>(request.place)] = true;
        require(request.roll >= 0 && request.roll < columns, range("rolls", columns, request.roll));
    }
}

// Long runs bypass the cache; what does not fill 4-byte values is copied as it is.
void copy_bytes(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes) {
    constexpr std::size_t least_streamed = 1024, value = 4;
    const auto count = static_cast<long>(bytes / value);
    const auto copy =
        kernels().convert.convert[static_cast<int>(Target::copied)][static_cast<int>(SourceForm::values)];
    copy({from, 0, to, count, 1, 0, bytes >= least_streamed});
    const std::size_t done = static_cast<std::size_t>(count) * value;
    if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

ClimateReader::ClimateReader(std::vector<ClimateFile> files, const ClimateSpec& spec)
    : spec_(spec),
      files_(checked_files(std::move(files))),
      conversion_((check_spec(spec, files_.front().shape()), conversion_of(spec))),
      pool_(spec.threads, "hpcai500-read") {
    for (std::size_t number = 0; number < files_.size(); ++number)
        descriptors_.push_back(open_year(files_[number].path(), number));
    for (std::size_t worker = 0; worker < pool_.size(); ++worker)
        readers_.push_back(std::make_unique<PieceReader>());
}

JobEnd ClimateReader::do_pieces(std::span<const Piece> pieces, std::span<const ImageRequest> requests,
                                const ColumnCrop& crop, void* out, const WorkerPool::Stop& stop) {
    const auto work = [&](std::size_t number, std::size_t worker) {
        const Piece& piece = pieces[number];
        const bool inflated =
            readers_[worker]->read({files_[piece.file], descriptors_[piece.file].value(), piece, requests,
                                    spec_.channels, crop, conversion_, static_cast<std::uint8_t*>(out)});
        if (inflated) chunks_inflated_.fetch_add(1, std::memory_order_relaxed);
    };
    return pool_.run(pieces.size(), work, stop);
}

JobEnd ClimateReader::read(std::vector<ImageRequest> requests, std::int64_t places, void* out,
                           const WorkerPool::Stop& stop) {
    const auto count = static_cast<std::int64_t>(files_.size());
    for (const ImageRequest& request : requests) {
        require(request.file >= 0 && request.file < count, range("files", count, request.file));
        const std::int64_t images = files_[static_cast<std::size_t>(request.file)].shape()[0];
        require(request.image >= 0 && request.image < images, range("images", images, request.image));
    }
    check_requests(requests, places, columns());
    const ColumnCrop crop{spec_.left, spec_.width};
    const auto pieces = make_plan(files_, requests, spec_.channels, crop);
    return do_pieces(pieces, requests, crop, out, stop);
}

JobEnd ClimateReader::read_window(std::int64_t file, std::int64_t first, std::int64_t count,
                                  const Shares& part, void* out, const WorkerPool::Stop& stop) {
    const auto files = static_cast<std::int64_t>(files_.size());
    require(file >= 0 && file < files, range("file", files, file));
    const std::int64_t images = files_[static_cast<std::size_t>(file)].shape()[0];
    require(first >= 0 && count >= 1 && count <= images && first <= images - count,
            "a window must lie in the " + std::to_string(images) + " images of its file, got first " +
                std::to_string(first) + " and count " + std::to_string(count));
    // Times the number of pieces, it must stay within 64 bits.
    constexpr std::size_t most_shares = std::size_t{1} << 31;
    require(part.begin < part.end && part.end <= part.total && part.total <= most_shares,
            "part must be (begin, end, total) with begin < end <= total <= 2**31, got " +
                std::to_string(part.begin) + ", " + std::to_string(part.end) + ", " +
                std::to_string(part.total));
    std::vector<ImageRequest> requests;
    for (std::int64_t image = 0; image < count; ++image) requests.push_back({file, first + image, image, 0});
    const ColumnCrop crop{0, columns()};
    const auto pieces = make_plan(files_, requests, spec_.channels, crop);
    const std::size_t begin = pieces.size() * part.begin / part.total;
    const std::size_t end = pieces.size() * part.end / part.total;
    return do_pieces(std::span(pieces).subspan(begin, end - begin), requests, crop, out, stop);
}

JobEnd ClimateReader::take(const void* window, std::int64_t images, std::span<const ImageRequest> requests,
                           std::int64_t places, void* out, const WorkerPool::Stop& stop) {
    for (const ImageRequest& request : requests)
        require(request.image >= 0 && request.image < images, range("positions", images, request.image));
    check_requests(requests, places, columns());
    const std::size_t item = item_bytes(), planes = spec_.channels.size();
    const auto row_bytes = static_cast<std::size_t>(columns()) * item;
    const auto out_bytes = static_cast<std::size_t>(width()) * item;
    const auto height = static_cast<std::size_t>(rows());
    const auto work = [&](std::size_t piece, std::size_t) {
        const ImageRequest& request = requests[piece / planes];
        const std::size_t channel = piece % planes;
        const auto rows_of_plane = [&](std::int64_t image) {
            return (static_cast<std::size_t>(image) * planes + channel) * height;
        };
        const auto* from =
            static_cast<const std::uint8_t*>(window) + rows_of_plane(request.image) * row_bytes;
        auto* to = static_cast<std::uint8_t*>(out) + rows_of_plane(request.place) * out_bytes;
        const ColumnRuns columns_taken(0, columns(), columns(), request.roll, {spec_.left, spec_.width});
        for (const ColumnRun& run : columns_taken.runs()) {
            const bool joined = run.count == columns();
            const std::size_t bytes = static_cast<std::size_t>(run.count) * item * (joined ? height : 1);
            const std::uint8_t* source = from + static_cast<std::size_t>(run.from) * item;
            std::uint8_t* target = to + static_cast<std::size_t>(run.to) * item;
            for (std::size_t row = 0; row < (joined ? 1 : height); ++row)
                copy_bytes(source + row * row_bytes, target + row * out_bytes, bytes);
        }
        kernels().convert.publish();
    };
    return pool_.run(requests.size() * planes, work, stop);
}

}  // namespace hpcai500
