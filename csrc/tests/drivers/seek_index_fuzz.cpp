// A fuzz target: any bytes as a seek index, beside a JPEG file that is sound.
//
//  - An index that is no index is refused by SeekIndexError.
//  - The image is always made; where points of the index were not used, to the bit as without.
//
// Nearly any change breaks a checksum. So the mutator makes them anew: what an attacker does, and the only
// way to what is behind them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>

#include "core/jpeg/decode_crop.h"
#include "core/jpeg/seek_index.h"
#include "fuzz_input.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t room);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t room,
                                               unsigned seed);

namespace {

using namespace hpcai500;

// 4:2:0 with all kinds of coefficients, in the file's usual codes.
Bytes make_jpeg(int width, int height) {
    jpeg_compress_struct compressor;
    jpeg_error_mgr errors;
    compressor.err = jpeg_std_error(&errors);
    jpeg_create_compress(&compressor);
    unsigned char* made = nullptr;
    unsigned long bytes = 0;
    jpeg_mem_dest(&compressor, &made, &bytes);
    compressor.image_width = static_cast<JDIMENSION>(width);
    compressor.image_height = static_cast<JDIMENSION>(height);
    compressor.input_components = 3;
    compressor.in_color_space = JCS_RGB;
    jpeg_set_defaults(&compressor);
    jpeg_set_quality(&compressor, 90, TRUE);
    jpeg_start_compress(&compressor, TRUE);
    std::mt19937 random(500);
    std::vector<JSAMPLE> line(static_cast<std::size_t>(width) * 3);
    for (int row = 0; row < height; ++row) {
        // Smooth, with noise that grows to the right.
        for (int i = 0; i < width * 3; ++i)
            line[static_cast<std::size_t>(i)] =
                static_cast<JSAMPLE>((row * 2 + i / 3 + i % 3 * 40 +
                                      static_cast<int>(random() % static_cast<unsigned>(1 + i / 12))) %
                                     256);
        JSAMPROW rows[] = {line.data()};
        jpeg_write_scanlines(&compressor, rows, 1);
    }
    jpeg_finish_compress(&compressor);
    jpeg_destroy_compress(&compressor);
    Bytes file(made, made + bytes);
    std::free(made);
    return file;
}

const Bytes& jpeg() {
    static const Bytes made = make_jpeg(120, 72);
    return made;
}

Bytes make_index() {
    const auto points = ImageDecoder().seek_points(jpeg());
    claim(points && !points->empty(), "a sound file has no seek points");
    const auto path =
        std::filesystem::temp_directory_path() / ("hpcai500-fuzz-" + std::to_string(::getpid()));
    SeekIndexWriter writer(path);
    writer.add({7, 100}, {});
    writer.add(seek_key(jpeg()), *points);
    writer.add({0xFFFFFFFF, 5000}, *points);
    writer.finish();
    std::ifstream file(path, std::ios::binary);
    Bytes index{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(path);
    return index;
}

const Bytes& sound_index() {
    static const Bytes made = make_index();
    return made;
}

// A file without a name, that holds one input after the other.
class MemoryFile {
  public:
    MemoryFile() : file_(::memfd_create("index", MFD_CLOEXEC)) { claim(file_ >= 0, "memfd_create failed"); }
    ~MemoryFile() { ::close(file_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    std::string hold(std::span<const std::uint8_t> bytes) {
        const bool held = ::ftruncate(file_, 0) == 0 && ::pwrite(file_, bytes.data(), bytes.size(), 0) ==
                                                            static_cast<ssize_t>(bytes.size());
        claim(held, "memory is full");
        return "/proc/self/fd/" + std::to_string(file_);
    }

  private:
    int file_;
};

// What becomes of an input.
enum class Kind { refused, unknown, rejected, none, same, other };
Tally<6>& tally() {
    static Tally<6> made({"refused as an index", "without the file", "with false points", "without points",
                          "used with the same pixels", "used with other pixels"});
    return made;
}

CropBox choose_box(Choices& choices) {
    CropBox box;
    box.width = 1 + choices.below(120);
    box.height = 1 + choices.below(72);
    box.x = choices.below(121 - static_cast<int>(box.width));
    box.y = choices.below(73 - static_cast<int>(box.height));
    return box;
}

Kind kind_of(SeekUse use, bool same) {
    claim(same || use == SeekUse::used, "pixels differ, and no points were used");
    if (use == SeekUse::used) return same ? Kind::same : Kind::other;
    if (use == SeekUse::unknown) return Kind::unknown;
    return use == SeekUse::false_points ? Kind::rejected : Kind::none;
}

void store(Bytes& bytes, std::size_t at, std::uint32_t number) {
    Bytes packed;
    append_little(packed, number);
    std::copy(packed.begin(), packed.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

// Makes all checksums anew, as far as the table lies in the file.
void repair(Bytes& bytes) {
    using namespace seek_format;
    if (bytes.size() < header_bytes) return;
    const auto table = load_little<std::uint64_t>(bytes.data() + 16);
    const auto files = load_little<std::uint32_t>(bytes.data() + 24);
    if (table <= bytes.size() && files <= (bytes.size() - table) / SeekIndex::entry_bytes) {
        const std::size_t length = files * SeekIndex::entry_bytes;
        for (std::size_t at = table; at < table + length; at += SeekIndex::entry_bytes) {
            const SeekKey key{load_little<std::uint32_t>(bytes.data() + at),
                              load_little<std::uint32_t>(bytes.data() + at + 4)};
            const auto offset = load_little<std::uint64_t>(bytes.data() + at + 8);
            const std::size_t room = load_little<std::uint32_t>(bytes.data() + at + 16);
            if (room < checksum_bytes || offset < header_bytes || offset > table || room > table - offset)
                continue;
            const std::span<const std::uint8_t> points{bytes.data() + offset + checksum_bytes,
                                                       room - checksum_bytes};
            store(bytes, offset, checksum_of(key, points));
        }
        store(bytes, 12, crc({bytes.data() + table, length}));
    }
    store(bytes, header_bytes - checksum_bytes, crc({bytes.data(), header_bytes - checksum_bytes}));
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t room,
                                               unsigned seed) {
    std::mt19937 random(seed);
    Bytes bytes(data, data + size);
    if (size < seek_format::header_bytes || random() % 16 == 0) bytes = sound_index();
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
        // A few bytes in place, so that what is behind them is found.
        const std::size_t from = random() % bytes.size(),
                          length = std::min<std::size_t>(8, bytes.size() - from);
        if (random() % 4 != 0) {
            LLVMFuzzerMutate(bytes.data() + from, length, length);
        } else {
            bytes.resize(bytes.size() + 32);
            bytes.resize(LLVMFuzzerMutate(bytes.data(), bytes.size() - 32, bytes.size()));
        }
        if (bytes.empty()) break;
    }
    if (random() % 8 != 0) repair(bytes);
    bytes.resize(std::min(bytes.size(), room));
    if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
    return bytes.size();
}

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    static MemoryFile file;
    static ImageDecoder decoder;
    const std::string path = file.hold(data);
    try {
        const SeekIndex index(path);
        Choices choices(digest(data));
        DecodeSpec spec;
        spec.size = 1 + choices.below(24);
        spec.dtype = DType::uint8;
        const CropBox box = choose_box(choices);
        Bytes with(spec.image_bytes()), without(spec.image_bytes());
        decoder.decode_box(jpeg(), spec, box, without.data());
        decoder.decode_box(jpeg(), spec, box, with.data(), &index);
        tally().add(kind_of(decoder.last_seek(), with == without));
        const bool sound = std::equal(data.begin(), data.end(), sound_index().begin(), sound_index().end());
        claim(!sound || (decoder.last_seek() == SeekUse::used && with == without),
              "a sound index is not used");
    } catch (const SeekIndexError&) {
        tally().add(Kind::refused);
    }
}
