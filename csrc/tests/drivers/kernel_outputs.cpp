// Runs every kernel of one instruction set (HPCAI500_ISA) on the same made-up inputs, of all sizes around its
// vectors' and with infinite, subnormal and NaN values, and prints a hash of what each gives. The hashes are
// the same for every instruction set, on every processor, but of those that portable.h rounds differently: a
// "fused" in the name says so. Which NaN it is does not count.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <random>
#include <vector>

#include "core/climate/convert_kernel.h"
#include "core/detection/detection_kernel.h"
#include "core/gradients/compression_kernel.h"
#include "core/gradients/quantised_layout.h"
#include "core/grow_buffer.h"
#include "core/isa.h"
#include "core/jpeg/baseline/kernel.h"
#include "core/jpeg/resize_kernel.h"

namespace hpcai500 {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::mt19937 random_bits(500);

int whole(int least, int most) {
    return least + static_cast<int>(random_bits() % static_cast<unsigned>(most - least + 1));
}

std::size_t size(std::int64_t count) {
    return static_cast<std::size_t>(count);
}

/// The FNV-1a hash of what was added.
class Hash {
  public:
    void add(const void* memory, std::size_t bytes) {
        const auto* byte = static_cast<const std::uint8_t*>(memory);
        for (std::size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ byte[i]) * 0x100000001b3;
    }
    /// `items` of a type of `bytes` bytes whose largest magnitude that is no NaN is `infinity`.
    template <class Bits>
    void add_numbers(const void* memory, std::size_t items, Bits infinity) {
        for (std::size_t i = 0; i < items; ++i) {
            Bits bits;
            std::memcpy(&bits, static_cast<const char*>(memory) + i * sizeof bits, sizeof bits);
            constexpr auto magnitude = static_cast<Bits>(~Bits{0} >> 1);
            if ((bits & magnitude) > infinity) bits = magnitude;
            add(&bits, sizeof bits);
        }
    }
    /// In the order of enums: float32, float16, bfloat16, and bytes or float64.
    void add_items(const void* memory, std::size_t items, int type) {
        if (type == 0) add_numbers<std::uint32_t>(memory, items, 0x7f800000);
        if (type == 1) add_numbers<std::uint16_t>(memory, items, 0x7c00);
        if (type == 2) add_numbers<std::uint16_t>(memory, items, 0x7f80);
        if (type == 3) add(memory, items);
        if (type == 4) add_numbers<std::uint64_t>(memory, items, 0x7ff0000000000000);
    }
    void print(const char* name) {
        std::printf("%s %016llx\n", name, static_cast<unsigned long long>(hash_));
        *this = Hash();
    }

  private:
    std::uint64_t hash_ = 0xcbf29ce484222325;
};

constexpr std::size_t type_bytes[] = {4, 2, 2, 1, 8};

float ordinary() {
    return static_cast<float>(whole(-1 << 20, 1 << 20)) * 0x1p-18f;
}

/// Any bits, every fourth one; and ordinary numbers, which alone are within 2^22.
float any_float() {
    return whole(0, 3) == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random_bits())) : ordinary();
}

template <class Item, class Make>
std::vector<Item> made(std::int64_t count, const Make& make) {
    std::vector<Item> result(size(count));
    for (Item& item : result) item = static_cast<Item>(make());
    return result;
}

std::uint8_t any_byte() {
    return static_cast<std::uint8_t>(random_bits());
}

/// Values of a type that features or gradients come in, 4 for float64.
Bytes features(std::int64_t count, int type) {
    Bytes memory(size(count) * type_bytes[type]);
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = whole(0, 99) == 0 ? any_float() : ordinary();
        const double wide = static_cast<double>(ordinary()) / 3;
        const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
        const auto half = static_cast<std::uint16_t>(random_bits());
        const void* from = type == 0 ? static_cast<const void*>(&value) : type == 1 ? &half : &upper;
        std::memcpy(memory.data() + size(i) * type_bytes[type], type == 4 ? &wide : from, type_bytes[type]);
    }
    return memory;
}

// ---- Resize.

/// Weights of 1/64 and factors of 2 give sums that no rounding touches.
float weight(bool exact) {
    return exact ? static_cast<float>(whole(-8, 24)) / 64 : ordinary() / 4;
}

struct Axis {
    std::vector<int> start, count;
    std::vector<float> weights;
    Axis(int outputs, int inputs, int most_taps, bool exact) {
        for (int i = 0; i < outputs; ++i) {
            count.push_back(whole(1, most_taps < inputs ? most_taps : inputs));
            start.push_back(whole(0, inputs - count.back()));
        }
        weights = made<float>(outputs * most_taps, [&] { return weight(exact); });
    }
};

constexpr int most_taps = 5;

void print_rows(const char* name, bool exact) {
    Hash hash;
    for (const int length : {1, 7, 16, 33}) {
        for (const int columns : {1, 4, 15, 16, 35}) {
            const Axis across(length, columns, most_taps, exact), down(group_rows, 6, most_taps, exact);
            const int padded = (columns + block_pixels - 1) / block_pixels * block_pixels;
            const Bytes pixels = made<std::uint8_t>(6 * padded * 4, any_byte);
            const std::uint8_t* rows[6];
            for (int i = 0; i < 6; ++i) rows[i] = pixels.data() + i * padded * 4;
            GrowBuffer<float> workspace;
            RowGroup group{};
            group.source_rows = rows;
            for (int i = 0; i < group_rows; ++i) {
                group.first_row[i] = down.start[size(i)];
                group.row_count[i] = down.count[size(i)];
                group.row_weights[i] = down.weights.data() + i * most_taps;
            }
            group.columns = columns;
            group.column_start = across.start.data();
            group.column_count = across.count.data();
            group.column_weights = across.weights.data();
            group.weight_stride = most_taps;
            group.flip = length == 7;
            group.workspace = workspace.reserve(size(padded * column_floats));
            group.size = length;
            group.rows = length < group_rows ? length : group_rows;
            group.row = length - group.rows;
            for (int channel = 0; channel < 3; ++channel) {
                group.scale[channel] = exact ? 0.5f : 0.017f;
                group.bias[channel] = static_cast<float>(channel);
            }
            for (int type = 0; type < 4; ++type) {
                for (int layout = 0; layout < 2; ++layout) {
                    Bytes image(size(3 * length * length) * type_bytes[type]);
                    group.image = image.data();
                    resize_kernel().resize_rows[type][layout](group);
                    hash.add_items(image.data(), size(3 * length * length), type);
                }
            }
        }
    }
    hash.print(name);
}

void print_planes(const char* name, int planes, bool exact) {
    Hash hash;
    for (const int length : {1, 15, 16, 37}) {
        for (const int columns : {1, 16, 43}) {
            PlaneGroup group{};
            group.plane_count = planes;
            const int padded = (columns + sample_block - 1) / sample_block * sample_block;
            const Bytes samples = made<std::uint8_t>(9 * padded, any_byte);
            const std::uint8_t* rows[9];
            for (int i = 0; i < 9; ++i) rows[i] = samples.data() + i * padded;
            const Axis across(length, columns, most_taps, exact), down(plane_rows, 9, most_taps, exact);
            GrowBuffer<float> workspace[3];
            for (int plane = 0; plane < planes; ++plane) {
                PlanePart& part = group.planes[plane];
                part.source_rows = rows;
                for (int i = 0; i < plane_rows; ++i) {
                    part.first_row[i] = down.start[size(i)];
                    part.row_count[i] = down.count[size(i)];
                    part.row_weights[i] = down.weights.data() + (i + plane) % plane_rows * most_taps;
                }
                part.columns = columns;
                part.column_start = across.start.data();
                part.column_count = across.count.data();
                part.column_weights = across.weights.data();
                part.weight_stride = most_taps;
                part.workspace = workspace[plane].reserve(size(padded * plane_rows));
            }
            group.flip = columns == 16;
            group.size = length;
            group.rows = length < plane_rows ? length : plane_rows;
            group.row = length - group.rows;
            for (int channel = 0; channel < 3; ++channel) {
                group.scale[channel] = exact ? 0.25f : 0.019f;
                group.bias[channel] = static_cast<float>(-channel);
            }
            for (int type = 0; type < 4; ++type) {
                for (int layout = 0; layout < 2; ++layout) {
                    Bytes image(size(3 * length * length) * type_bytes[type]);
                    group.image = image.data();
                    resize_kernel().resize_planes[type][layout](group);
                    hash.add_items(image.data(), size(3 * length * length), type);
                }
            }
        }
    }
    hash.print(name);
}

// ---- Conversion and compression. Runs of all lengths and alignments around a line.

void print_convert() {
    Hash hash;
    constexpr int targets[] = {0, 0, 1, 2};
    for (const long count : {0, 1, 15, 16, 17, 31, 32, 33, 47, 64, 100, 1027}) {
        const auto source = made<float>(count + 1, any_float);
        for (int target = 0; target < 4; ++target) {
            for (int form = 0; form < 2; ++form) {
                for (const int offset : {0, 2, 7, 12}) {
                    GrowBuffer<std::uint8_t> buffer;
                    std::uint8_t* const out = buffer.reserve(size(count * 4 + 64)) + offset;
                    const auto* const first = reinterpret_cast<const unsigned char*>(source.data());
                    const ConvertRun run{first + offset % 4, count, out, count, 0.37f, -1.7f, form == 0};
                    convert_kernel().convert[target][form](run);
                    convert_kernel().publish();
                    hash.add_items(out, size(count), targets[target]);
                }
            }
        }
    }
    hash.print("convert");
}

void print_casts() {
    Hash pack, unpack, squares;
    const auto add = [](Hash& hash, double sum) { hash.add_items(&sum, 1, 4); };
    for (const std::int64_t count : {0, 1, 31, 32, 33, 63, 64, 65, 4096, 9001}) {
        const auto values = made<float>(count, any_float), finite = made<float>(count, ordinary);
        for (int type = 0; type < 3; ++type) {
            const Bytes wire = made<std::uint8_t>(count * 4, any_byte);
            for (const int offset : {0, 4, 20}) {
                for (int summed = 0; summed < 2; ++summed) {
                    GrowBuffer<std::uint8_t> buffer;
                    std::uint8_t* const out = buffer.reserve(size(count * 4 + 64)) + offset;
                    for (const auto* source : {&values, &finite}) {
                        const CastRun run{source->data(), out, count, 0.3f, offset != 4};
                        add(pack, compression_kernel().pack[type][summed](run));
                        pack.add_items(out, size(count), type);
                    }
                    const CastRun run{wire.data(), out, count, 0.3f, offset != 4};
                    add(unpack, compression_kernel().unpack[type][summed](run));
                    unpack.add_items(out, size(count), 0);
                }
            }
        }
        for (const auto* source : {&values, &finite})
            add(squares, compression_kernel().squares(source->data(), count));
        GrowBuffer<float> from, to;
        const std::int64_t lines = count / 16;
        std::memcpy(from.reserve(size(count + 16)), values.data(), size(count) * 4);
        compression_kernel().copy_lines(from.data(), to.reserve(size(count + 16)), lines);
        compression_kernel().publish();
        squares.add_items(to.data(), size(lines * 16), 0);
        const std::uint32_t largest = compression_kernel().read_lines(from.data(), lines);
        squares.add(&largest, sizeof largest);
    }
    pack.print("pack");
    unpack.print("unpack");
    squares.print("squares");
}

void print_quantise() {
    Hash hash;
    constexpr std::int64_t blocks = 35;
    constexpr std::int64_t bytes = (blocks + 15) / 16 * quantised_chunk_bytes;
    for (const float magnitude : {1.0f, 1e-36f, 1e-30f, 1e38f}) {
        auto values = made<float>(blocks * quantised_block, [&] { return ordinary() * magnitude; });
        // One block has any bits: all its values become NaN, or it is very small or large.
        for (std::int64_t i = 0; i < quantised_block; ++i)
            values[size(3 * quantised_block + i)] = any_float();
        for (int summed = 0; summed < 2; ++summed) {
            auto residual = made<float>(blocks * quantised_block, [&] { return ordinary() * magnitude; });
            Bytes buffer(bytes);
            const QuantiseRun run{
                values.data(), summed != 0 ? residual.data() : nullptr, buffer.data(), 0, blocks, 0.7f};
            const double sum = compression_kernel().quantise[summed](run);
            hash.add_items(&sum, 1, 4);
            hash.add(buffer.data(), buffer.size());
            hash.add_items(residual.data(), residual.size(), 0);
            for (int accumulate = 0; accumulate < 2; ++accumulate) {
                GrowBuffer<float> target;
                const DequantiseRun back{buffer.data(),  target.reserve(residual.size()), 0, blocks, 0.1f,
                                         accumulate == 0};
                std::memcpy(back.target, values.data(), residual.size() * 4);
                const double found = compression_kernel().dequantise[accumulate][summed](back);
                compression_kernel().publish();
                hash.add_items(&found, 1, 4);
                hash.add_items(back.target, residual.size(), 0);
            }
        }
    }
    hash.print("quantise");
}

// ---- Detection.

template <class Real, class Mark>
void add_suppressed(Hash& hash, Suppress<Real, Mark> suppress) {
    constexpr int count = 4 * box_block;
    GrowBuffer<Real> columns;
    GrowBuffer<Mark> marks;
    Real* const x1 = columns.reserve(5 * count);
    for (int i = 0; i < count; ++i) {
        const Real x = static_cast<Real>(whole(0, 40)), y = static_cast<Real>(whole(0, 40));
        const Real w = static_cast<Real>(whole(0, 25)), h = static_cast<Real>(whole(0, 25)) / 3;
        const Real box[] = {x, y, x + w, y + h, w * ((y + h) - y)};
        for (int side = 0; side < 5; ++side)
            x1[side * count + i] = i % 50 == 49 ? std::numeric_limits<Real>::quiet_NaN() : box[side];
    }
    std::memset(marks.reserve(count), 0, count * sizeof(Mark));
    const int keepers[] = {0, 3, 17, 49, 63};
    suppress({x1, x1 + count, x1 + 2 * count, x1 + 3 * count, x1 + 4 * count}, keepers, 5, box_block, count,
             static_cast<Real>(0.3), marks.data());
    hash.add(marks.data(), count * sizeof(Mark));
}

template <class Real>
struct Taps {
    std::vector<int> begin{0}, index;
    std::vector<Real> weight;
    Taps(int bins, int pixels) {
        for (int bin = 0; bin < bins; ++bin) {
            for (int taps = whole(0, 4), at = whole(0, pixels - 5); taps > 0; --taps) {
                index.push_back(at++);
                weight.push_back(static_cast<Real>(whole(1, 100)) / 97);
            }
            begin.push_back(static_cast<int>(index.size()));
        }
    }
    AxisTapsView<Real> view() const { return {begin.data(), index.data(), weight.data()}; }
};

template <class Real, class Pool, class Spread>
void add_rois(Hash& pooled_hash, Hash& spread_hash, Pool pool, Spread spread, int type, bool last) {
    constexpr int height = 12, width = 23, row_bins = 3, column_bins = 5;
    for (const int channels : {1, 3, 16, 67}) {
        const Taps<Real> rows(row_bins, height), columns(column_bins, width);
        const RoiTaps<Real> taps{rows.view(), columns.view(), row_bins, column_bins, 0, width};
        const Bytes image = features(channels * height * width, type);
        const std::int64_t bins = channels * row_bins * column_bins;
        Bytes pooled(size(bins) * type_bytes[type]);
        GrowBuffer<Real> workspace, tile;
        GrowBuffer<std::uint16_t> narrow;
        constexpr std::size_t room = width + column_bins * channel_block;
        pool({taps, image.data(), channels, height, width, pooled.data(), workspace.reserve(room),
              narrow.reserve(room)});
        pooled_hash.add_items(pooled.data(), size(bins), type);

        const int some = channels < channel_block ? channels : channel_block;
        const std::size_t values = size((last ? channel_block : some) * (height - 3) * width);
        std::memset(tile.reserve(values), 0, values * sizeof(Real));
        spread({taps, pooled.data(), some, 2, height - 1, width, tile.data(), workspace.data()});
        spread_hash.add_items(tile.data(), values, sizeof(Real) == 4 ? 0 : 4);
    }
}

void print_detection() {
    const DetectionKernel& kernel = detection_kernel();
    Hash suppressed, pooled, spread, narrowed;
    add_suppressed(suppressed, kernel.suppress_float);
    add_suppressed(suppressed, kernel.suppress_double);
    suppressed.print("suppress");
    for (int layout = 0; layout < 2; ++layout) {
        for (int type = 0; type < 3; ++type)
            add_rois<float>(pooled, spread, kernel.pool_float[type][layout],
                            kernel.spread_float[type][layout], type, layout == 1);
        add_rois<double>(pooled, spread, kernel.pool_double[layout], kernel.spread_double[layout], 4,
                         layout == 1);
    }
    pooled.print("pool");
    spread.print("spread");
    for (const std::int64_t count : {0, 1, 3, 16, 17, 1000}) {
        const auto values = made<float>(count, any_float);
        for (int type = 0; type < 3; ++type) {
            Bytes out(size(count) * type_bytes[type]);
            kernel.narrow[type](values.data(), out.data(), count);
            narrowed.add_items(out.data(), size(count), type);
        }
    }
    narrowed.print("narrow");
}

// ---- JPEG.

class BitWriter {
  public:
    explicit BitWriter(Bytes& out) : out_(out) {}
    void write(int bits, int count) {
        for (int i = count - 1; i >= 0; --i, ++filled_) {
            if (filled_ % 8 == 0) out_.push_back(0);
            out_.back() = static_cast<std::uint8_t>(out_.back() | (bits >> i & 1) << (7 - filled_ % 8));
        }
    }

  private:
    Bytes& out_;
    int filled_ = 0;
};

void print_baseline() {
    // Codes of 8 bits, in the order of the symbols: 0 to 11, and of coefficients all runs and lengths.
    baseline::HuffmanCode dc{}, ac{};
    dc.counts[7] = 12;
    for (int i = 0; i < 12; ++i) dc.symbols[i] = static_cast<std::uint8_t>(i);
    std::vector<int> symbols{0, 0xf0};
    for (int run = 0; run < 16; ++run)
        for (int bits = 1; bits <= 10; ++bits) symbols.push_back(run << 4 | bits);
    ac.counts[7] = static_cast<std::uint8_t>(symbols.size());
    for (std::size_t i = 0; i < symbols.size(); ++i) ac.symbols[i] = static_cast<std::uint8_t>(symbols[i]);
    static baseline::DifferenceTable differences;
    static baseline::CoefficientTable coefficients;
    if (!build(differences, dc) || !build(coefficients, ac)) std::printf("no tables\n");

    // Coefficients grow from picture's to such as no picture has, whose sums wrap.
    Hash hash;
    constexpr int mcus = 200, blocks = 6;
    Bytes data;
    BitWriter writer(data);
    for (int block = 0; block < mcus * blocks; ++block) {
        const int most_bits = 1 + block * 10 / (mcus * blocks);
        const int difference = block % 2 == 0 ? most_bits / 2 : 0;
        writer.write(difference, 8);
        writer.write(whole(0, 1 << difference) >> 1, difference);
        int place = 1;
        for (int left = whole(0, 63); left > 0 && place < 63; --left) {
            const int room = 63 - place, run = whole(0, room < 3 ? room : 3), bits = whole(1, most_bits);
            writer.write(2 + run * 10 + bits - 1, 8);
            writer.write(whole(0, (1 << bits) - 1), bits);
            place += run + 1;
        }
        if (place < 64) writer.write(0, 8);
    }
    const std::size_t length = data.size();
    data.resize(length + baseline::padding_bytes);
    alignas(64) std::int16_t factors[64];
    for (int i = 0; i < 64; ++i) factors[i] = static_cast<std::int16_t>(whole(1, 255));
    constexpr int stride = mcus * 16;
    Bytes planes[3] = {Bytes(16 * stride), Bytes(8 * stride), Bytes(8 * stride)};
    const auto scan_of = [&] {
        baseline::ScanState scan{};
        scan.bits.next = data.data();
        scan.end = data.data() + length;
        scan.component_count = 3;
        for (int i = 0; i < 3; ++i)
            scan.components[i] = {&differences,     &coefficients, factors, i == 0 ? 2 : 1, i == 0 ? 2 : 1, 0,
                                  planes[i].data(), stride};
        return scan;
    };
    baseline::ScanState decoded = scan_of(), skipped = scan_of();
    const bool made = baseline::baseline_kernel().decode_mcus(decoded, 0, mcus);
    const bool passed = baseline::baseline_kernel().skip_mcus(skipped, mcus);
    if (!made || !passed) std::printf("no scan\n");
    for (const Bytes& plane : planes) hash.add(plane.data(), plane.size());
    for (int i = 0; i < 3; ++i) {
        hash.add(&decoded.components[i].predictor, sizeof(int));
        hash.add(&skipped.components[i].predictor, sizeof(int));
    }
    hash.print("baseline");
}

int run() {
    std::printf("isa %s\n", name(chosen_isa()));
    print_rows("rows", true);
    print_rows("rows_fused", false);
    print_planes("grey", 1, true);
    print_planes("grey_fused", 1, false);
    print_planes("colours_fused", 3, false);
    print_convert();
    print_casts();
    print_quantise();
    print_detection();
    print_baseline();
    return 0;
}

}  // namespace
}  // namespace hpcai500

int main() try { return hpcai500::run(); } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
