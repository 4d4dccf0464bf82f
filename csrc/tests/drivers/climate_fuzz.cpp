// The fuzz target: any bytes, as a climate file whose shape, filters, tables and contents are all hostile.
// libFuzzer calls it, and so does climate_corpus (run_corpus.cpp).
//
// An input is a header (tests/core/climate_twin.py writes it), the table of chunks (7 bytes each: address,
// 24 bits of size, mask), and the file.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/climate/climate_reader.h"
#include "fuzz_input.h"

namespace {

using namespace hpcai500;

constexpr std::size_t header_bytes = 18;
constexpr std::int64_t most_cells = 64;

class Input {
  public:
    explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
    // Zero behind the end: short inputs are inputs, too.
    std::uint64_t next(std::size_t count) {
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < count && !bytes_.empty(); ++i) {
            value |= std::uint64_t{bytes_.front()} << (8 * i);
            bytes_ = bytes_.subspan(1);
        }
        return value;
    }
    std::int64_t below(std::int64_t bound) { return static_cast<std::int64_t>(next(1)) % bound; }
    std::span<const std::uint8_t> rest() const { return bytes_; }

  private:
    std::span<const std::uint8_t> bytes_;
};

struct Case {
    ClimateFile file;
    Conversion conversion;
    std::vector<int> channels;
    ColumnCrop crop{};
    std::int64_t roll = 0;
};

// Addresses and sizes mostly lie in the file; with the highest byte set they are absurd.
void read_tables(Input& input, ClimateFile& file, std::int64_t cells) {
    for (std::int64_t cell = 0; cell < cells; ++cell) {
        std::uint64_t address = input.next(3), size = input.next(3);
        if (address == 0xffffff)
            address = ClimateFile::absent;
        else if (address >= 0xfe0000)
            address <<= 40;
        if (size >= 0xfe0000) size <<= 40;
        file.addresses.push_back(address);
        file.sizes.push_back(size);
        file.masks.push_back(static_cast<std::uint32_t>(input.next(1)));
    }
}

std::optional<Case> parse(Input& input) {
    Case result;
    ClimateFile& file = result.file;
    file.path = "fuzz";
    constexpr Extents most{4, 4, 16, 40};
    for (std::size_t axis = 0; axis < 4; ++axis) file.shape[axis] = 1 + input.below(most[axis]);
    Extents chunk{};
    for (std::size_t axis = 0; axis < 4; ++axis) chunk[axis] = 1 + input.below(most[axis]);
    const std::uint64_t filters = input.next(1);
    for (std::uint64_t i = 0; i < 4; ++i) {
        const auto filter = static_cast<Filter>(input.below(4));
        if (i < filters % 5) file.filters.push_back(filter);
    }
    const std::int64_t target = input.below(4);
    result.conversion.target = static_cast<Target>(target);
    result.conversion.item_bytes = target < 2 ? 4 : 2;
    result.roll = input.below(file.shape[3]);
    result.crop.left = input.below(file.shape[3]);
    result.crop.width = 1 + input.below(file.shape[3] - result.crop.left);
    const std::int64_t wanted = 1 + input.below(file.shape[1]);
    for (std::int64_t i = wanted; i-- > 0;) result.channels.push_back(static_cast<int>(i));
    result.conversion.scale.assign(result.channels.size(), 0.5f);
    result.conversion.bias.assign(result.channels.size(), -0.0f);
    if (filters >= 128) {
        file.filters.clear();
        file.offset = input.next(3);
        return result;
    }
    file.chunk = chunk;
    std::int64_t cells = 1;
    for (std::size_t axis = 0; axis < 4; ++axis) cells *= (file.shape[axis] + chunk[axis] - 1) / chunk[axis];
    if (cells > most_cells) return std::nullopt;
    read_tables(input, file, cells);
    return result;
}

// One file in memory for all inputs.
int file_with(std::span<const std::uint8_t> bytes) {
    static const Descriptor file(::memfd_create("fuzz", MFD_CLOEXEC));
    if (file.value() < 0 || ::ftruncate(file.value(), static_cast<off_t>(bytes.size())) != 0 ||
        ::pwrite(file.value(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        std::abort();
    return file.value();
}

// Exactly the images' room: the sanitizer sees a byte written behind it.
std::vector<std::uint8_t> read_all(const Case& given, const ClimateStorage& storage, int descriptor,
                                   const ColumnCrop& crop, std::int64_t roll) {
    static PieceReader reader;
    const Extents& shape = storage.shape();
    std::vector<std::uint8_t> out(static_cast<std::size_t>(shape[0] * shape[2] * crop.width) *
                                  given.channels.size() * given.conversion.item_bytes);
    std::vector<ImageRequest> requests;
    for (std::int64_t image = 0; image < shape[0]; ++image) requests.push_back({0, image, image, roll});
    const std::vector<ClimateStorage> files{storage};
    const auto pieces = make_plan(files, requests, given.channels, crop);
    for (const Piece& piece : pieces)
        reader.read(
            {storage, descriptor, piece, requests, given.channels, crop, given.conversion, out.data()});
    return out;
}

// What the roll and the crop leave of a whole read, column by column.
void check_columns(const Case& given, std::span<const std::uint8_t> whole,
                   std::span<const std::uint8_t> part) {
    const auto item = static_cast<std::int64_t>(given.conversion.item_bytes);
    const std::int64_t columns = given.file.shape[3], width = given.crop.width;
    const std::int64_t rows = static_cast<std::int64_t>(part.size()) / width / item;
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t x = 0; x < width; ++x) {
            const std::int64_t from = (given.crop.left + x - given.roll + columns) % columns;
            if (std::memcmp(part.data() + (row * width + x) * item,
                            whole.data() + (row * columns + from) * item,
                            static_cast<std::size_t>(item)) != 0)
                std::abort();
        }
}

}  // namespace

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    Input input(data);
    if (data.size() < header_bytes) return;
    const auto given = parse(input);
    if (!given) return;
    try {
        const ClimateStorage storage(given->file);
        const int descriptor = file_with(input.rest());
        const auto whole = read_all(*given, storage, descriptor, {0, storage.shape()[3]}, 0);
        check_columns(*given, whole, read_all(*given, storage, descriptor, given->crop, given->roll));
    } catch (const ClimateError& error) {
        // What damaged data is for. Its place is one that exists.
        if (error.place().image < 0 || error.place().image >= given->file.shape[0]) std::abort();
        if (error.place().channel < 0 || error.place().channel >= given->file.shape[1]) std::abort();
    } catch (const std::invalid_argument&) {
        // Tables that do not fit together.
    }
}
