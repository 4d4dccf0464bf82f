// Runs every kernel of one instruction set (HPCAI500_ISA) on the same made-up inputs, of sizes around its
// vectors', with infinite, subnormal and NaN values, and prints a hash of what each gives. The hashes are the
// same for every instruction set, on every processor, but for those that the portable kernels round
// differently: "fused" in the name says so. Which NaN it is does not count.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "core/gradients/quantised_layout.h"
#include "core/vectors/kernels.h"

namespace hpcai500 {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::mt19937 random_bits(500);
// What kernels write, and where they compute.
alignas(64) std::uint8_t out[1 << 18], workspace[3][1 << 16];

int whole(int least, int most) {
    return least + static_cast<int>(random_bits() % static_cast<unsigned>(most - least + 1));
}
float ordinary() {
    return static_cast<float>(whole(-1 << 20, 1 << 20)) * 0x1p-18f;
}
// Any bits, every fourth one.
float any_float() {
    return whole(0, 3) == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random_bits())) : ordinary();
}

template <class Item, class Make>
std::vector<Item> made(std::int64_t count, const Make& make) {
    std::vector<Item> result(static_cast<std::size_t>(count));
    result.reserve(1);  // an address where there are none, too
    for (Item& item : result) item = static_cast<Item>(make());
    return result;
}

// The types of numbers: float32, float16, bfloat16, bytes, float64.
constexpr int type_bytes[] = {4, 2, 2, 1, 8};
constexpr std::uint64_t infinities[] = {0x7f800000, 0x7c00, 0x7f80, 0xff, 0x7ff0000000000000};

// The FNV-1a hash of numbers.
struct Hash {
    std::uint64_t value = 0xcbf29ce484222325;

    void add(const void* memory, std::int64_t items, int type) {
        const auto* from = static_cast<const std::uint8_t*>(memory);
        for (; items > 0; --items, from += type_bytes[type]) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, from, static_cast<std::size_t>(type_bytes[type]));
            const std::uint64_t magnitude = ~std::uint64_t{0} >> (65 - 8 * type_bytes[type]);
            if (type != 3 && (bits & magnitude) > infinities[type]) bits = magnitude;
            value = (value ^ bits) * 0x100000001b3;
        }
    }
    void print(const char* name) const {
        std::printf("%s %016llx\n", name, static_cast<unsigned long long>(value));
    }
};

// ---- Resize, of pixels (RowGroup) and of planes (PlaneGroup).

constexpr int most_taps = 5, source_rows = 9;

// What a RowGroup or a PlanePart refers to. Weights of 1/64 and factors of 2 give sums that no rounding
// touches.
struct Source {
    Source(int outputs, int given_columns, int item_bytes, int output_rows, bool exact)
        : columns(given_columns) {
        const int padded = (columns + 15) / 16 * 16 * item_bytes;
        pixels = made<std::uint8_t>(source_rows * padded, [] { return random_bits(); });
        for (int i = 0; i < source_rows; ++i) rows[i] = pixels.data() + i * padded;
        weights = made<float>((outputs + plane_rows) * most_taps, [&] {
            return exact ? static_cast<float>(whole(-8, 24)) / 64 : ordinary() / 4;
        });
        for (int i = 0; i < outputs; ++i) {
            count.push_back(whole(1, most_taps < columns ? most_taps : columns));
            start.push_back(whole(0, columns - count.back()));
        }
        for (int row = 0; row < output_rows; ++row) {
            row_count.push_back(whole(1, most_taps));
            first_row.push_back(whole(0, source_rows - row_count.back()));
        }
    }

    void give(RowGroup& group, std::uint8_t* room) const {
        group.source_rows = rows;
        for (int row = 0; row < group_rows; ++row) {
            group.first_row[row] = first_row[row];
            group.row_count[row] = row_count[row];
            group.row_weights[row] = weights.data() + row * most_taps;
        }
        group.columns = columns;
        group.column_start = start.data();
        group.column_count = count.data();
        group.column_weights = weights.data() + plane_rows * most_taps;
        group.weight_stride = most_taps;
        group.workspace = reinterpret_cast<float*>(room);
    }

    void give(PlanePart& part, bool flip, std::uint8_t* room) {
        part.source_rows = rows;
        part.row_taps = most_taps;
        for (int row = 0; row < plane_rows; ++row)
            part.first_row[row] = pad(first_row[row], row_count[row], weights.data() + row * most_taps,
                                      most_taps, source_rows, row_weights);
        part.row_weights = row_weights.data();
        part.columns = columns;
        part.column_taps = most_taps < columns ? most_taps : columns;
        const int outputs = static_cast<int>(start.size());
        for (int column = 0; column < (outputs + 15) / 16 * 16; ++column) {
            const int shown = column < outputs ? column : outputs - 1;
            const int output = flip ? outputs - 1 - shown : shown;
            column_start.push_back(pad(start[output], count[output],
                                       weights.data() + (plane_rows + output) * most_taps, part.column_taps,
                                       columns, column_weights));
        }
        part.column_start = column_start.data();
        part.column_weights = column_weights.data();
        part.workspace = reinterpret_cast<float*>(room);
    }

    // `wanted` taps instead of `has`, among [0, limit); those that are new weigh nothing.
    static int pad(int from, int has, const float* its, int wanted, int limit, std::vector<float>& all) {
        const int moved = from < limit - wanted ? from : limit - wanted;
        for (int tap = moved; tap < moved + wanted; ++tap)
            all.push_back(tap >= from && tap < from + has ? its[tap - from] : 0.0f);
        return moved;
    }

    int columns;
    Bytes pixels;
    const std::uint8_t* rows[source_rows];
    std::vector<int> start, count, first_row, row_count, column_start;
    std::vector<float> weights, row_weights, column_weights;
};

bool flips(int length) {
    return length == 7;
}

template <class Group>
void add_images(Hash& hash, Group& group, int length, int rows, bool exact,
                void (*const (&resize)[4][2])(const Group&)) {
    group.image = out;
    group.size = length;
    group.rows = length < rows ? length : rows;
    group.row = length - group.rows;
    for (int channel = 0; channel < 3; ++channel) {
        group.scale[channel] = exact ? 0.5f : 0.017f;
        group.bias[channel] = static_cast<float>(channel);
    }
    for (int type = 0; type < 4; ++type) {
        for (const auto& resize_to_layout : resize[type]) {
            std::memset(out, 0, sizeof out);
            resize_to_layout(group);
            hash.add(out, 3 * length * length, type);
        }
    }
}

void print_resizes(bool exact) {
    Hash pixels, grey, colours;
    for (const int length : {1, 7, 16, 33}) {
        for (const int columns : {1, 4, 15, 16, 43}) {
            RowGroup group{};
            const Source source(length, columns, 4, group_rows, exact);
            source.give(group, workspace[0]);
            group.flip = flips(length);
            add_images(pixels, group, length, group_rows, exact, kernels().resize.resize_rows);
            for (const int planes : {1, 3}) {
                PlaneGroup planar{};
                planar.plane_count = planes;
                std::vector<Source> sources;
                sources.reserve(3);
                for (int i = 0; i < planes; ++i) {
                    sources.emplace_back(length, columns, 1, plane_rows, exact);
                    sources[i].give(planar.planes[i], flips(length), workspace[i]);
                }
                add_images(planes == 1 ? grey : colours, planar, length, plane_rows, exact,
                           kernels().resize.resize_planes);
            }
        }
    }
    pixels.print(exact ? "rows" : "rows_fused");
    grey.print(exact ? "grey" : "grey_fused");
    // The conversion's factors are never exact.
    if (!exact) colours.print("colours_fused");
}

// ---- Conversion and compression. Runs of all lengths and alignments around a line.

void print_convert() {
    Hash hash;
    for (const long count : {0, 1, 15, 16, 17, 31, 32, 33, 47, 64, 100, 1027}) {
        const auto source = made<float>(count + 1, any_float);
        const auto* const first = reinterpret_cast<const unsigned char*>(source.data());
        for (int target = 0; target < 4; ++target) {
            for (int form = 0; form < 2; ++form) {
                for (const int offset : {0, 2, 7, 12}) {
                    kernels().convert.convert[target][form](
                        {first + offset % 4, count, out + offset, count, 0.37f, -1.7f, form == 0});
                    kernels().convert.publish();
                    hash.add(out + offset, count, target == 0 ? 0 : target - 1);
                }
            }
        }
    }
    hash.print("convert");
}

void print_compression() {
    const CompressionKernel& kernel = kernels().compression;
    Hash pack, unpack, squares, quantised;
    const auto add_sum = [](Hash& hash, double sum) { hash.add(&sum, 1, 4); };
    for (const std::int64_t count : {0, 1, 31, 32, 33, 63, 64, 65, 4096, 9001}) {
        for (const auto& make : {any_float, ordinary}) {
            const auto values = made<float>(count, make);
            const auto wire = made<std::uint32_t>(count, [] { return random_bits(); });
            for (int type = 0; type < 3; ++type) {
                for (const int offset : {0, 4, 20}) {
                    for (int summed = 0; summed < 2; ++summed) {
                        void* const to = out + offset;
                        add_sum(pack,
                                kernel.pack[type][summed]({values.data(), to, count, 0.3f, offset != 4}));
                        pack.add(to, count, type);
                        add_sum(unpack,
                                kernel.unpack[type][summed]({wire.data(), to, count, 0.3f, offset != 4}));
                        unpack.add(to, count, 0);
                    }
                }
            }
            add_sum(squares, kernel.squares(values.data(), count));
            std::memcpy(workspace, values.data(), values.size() * 4);
            kernel.copy_lines(workspace, out, count / 16);
            squares.add(out, count / 16 * 16, 0);
            const std::uint32_t largest = kernel.read_lines(workspace, count / 16);
            squares.add(&largest, 1, 0);
        }
    }
    pack.print("pack");
    unpack.print("unpack");
    squares.print("squares");

    constexpr std::int64_t blocks = 35, count = blocks * quantised_block;
    for (const float magnitude : {1.0f, 1e-36f, 1e-30f, 1e38f}) {
        auto values = made<float>(count, [&] { return ordinary() * magnitude; });
        // One block has any bits: all its values become NaN, or it is very small or large.
        for (std::size_t i = 3 * quantised_block; i < 4 * quantised_block; ++i) values[i] = any_float();
        for (int summed = 0; summed < 2; ++summed) {
            auto residual = made<float>(count, [&] { return ordinary() * magnitude; });
            Bytes buffer((blocks + 15) / 16 * quantised_chunk_bytes);
            add_sum(quantised,
                    kernel.quantise[summed]({values.data(), summed != 0 ? residual.data() : nullptr,
                                             buffer.data(), 0, blocks, 0.7f}));
            quantised.add(buffer.data(), static_cast<std::int64_t>(buffer.size()), 3);
            quantised.add(residual.data(), count, 0);
            for (int accumulate = 0; accumulate < 2; ++accumulate) {
                std::memcpy(out, values.data(), values.size() * 4);
                auto* const target = reinterpret_cast<float*>(out);
                add_sum(quantised, kernel.dequantise[accumulate][summed](
                                       {buffer.data(), target, 0, blocks, 0.1f, accumulate == 0}));
                quantised.add(out, count, 0);
            }
        }
    }
    quantised.print("quantise");
}

// ---- Detection.

template <class Real, class Mark>
void add_suppressed(Hash& hash, Suppress<Real, Mark> suppress) {
    constexpr int count = 4 * box_block;
    auto* const x1 = reinterpret_cast<Real*>(workspace[0]);
    auto* const marks = reinterpret_cast<Mark*>(out);
    for (int i = 0; i < 5 * count; ++i)
        x1[i] = i % 50 == 49 ? std::numeric_limits<Real>::quiet_NaN() : static_cast<Real>(whole(0, 60)) / 3;
    std::memset(out, 0, sizeof out);
    const int keepers[] = {0, 3, 17, 49, 63};
    suppress({x1, x1 + count, x1 + 2 * count, x1 + 3 * count, x1 + 4 * count}, keepers, 5, box_block, count,
             static_cast<Real>(0.3), marks);
    hash.add(marks, count * static_cast<int>(sizeof *marks), 3);
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
    constexpr int height = 12, width = 23, row_bins = 3, column_bins = 21;
    for (const int channels : {1, 3, 16, 67}) {
        const Taps<Real> rows(row_bins, height), columns(column_bins, width);
        const RoiTaps<Real> taps{rows.view(), columns.view(), row_bins, column_bins, 0, width};
        const int pixels = channels * height * width, bins = channels * row_bins * column_bins;
        const auto values = made<Real>(pixels, [] { return static_cast<Real>(ordinary()) / 3; });
        const auto halves = made<std::uint16_t>(pixels, [&] {
            return type == 1 ? random_bits() : std::bit_cast<std::uint32_t>(ordinary()) >> 16;
        });
        const bool is_short = type == 1 || type == 2;
        const void* const image = is_short ? static_cast<const void*>(halves.data()) : values.data();
        Bytes pooled(static_cast<std::size_t>(bins * type_bytes[type]));
        auto* const room = reinterpret_cast<Real*>(workspace[0]);
        pool({taps, image, channels, height, width, pooled.data(), room, workspace[1]});
        pooled_hash.add(pooled.data(), bins, type);

        const int some = channels < channel_block ? channels : channel_block;
        std::memset(out, 0, sizeof out);
        spread({taps, pooled.data(), some, 2, height - 1, width, reinterpret_cast<Real*>(out), room});
        spread_hash.add(out, (last ? channel_block : some) * (height - 3) * width, sizeof(Real) == 4 ? 0 : 4);
    }
}

void print_detection() {
    const DetectionKernel& kernel = kernels().detection;
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
            kernel.narrow[type](values.data(), out, count);
            narrowed.add(out, count, type);
        }
    }
    narrowed.print("narrow");
}

// ---- JPEG.

void print_baseline() {
    // Codes of 8 bits, in the order of the symbols: 0 to 11, and of coefficients all runs and lengths.
    baseline::HuffmanCode dc{}, ac{};
    dc.counts[7] = 12;
    for (std::uint8_t i = 0; i < 12; ++i) dc.symbols[i] = i;
    ac.counts[7] = 162;
    ac.symbols[1] = 0xf0;
    for (int i = 0; i < 160; ++i) ac.symbols[2 + i] = static_cast<std::uint8_t>(i / 10 << 4 | (i % 10 + 1));
    static baseline::CodeTable differences, coefficients;
    if (!build(differences, dc, baseline::CodeKind::differences) ||
        !build(coefficients, ac, baseline::CodeKind::coefficients))
        std::printf("no tables\n");

    // Coefficients grow from a picture's to such as no picture has, whose sums wrap.
    constexpr int mcus = 200, blocks = 6 * mcus, stride = mcus * 16;
    Bytes data;
    int filled = 0;
    const auto write = [&](int bits, int count) {
        for (int i = count - 1; i >= 0; --i, ++filled) {
            if (filled % 8 == 0) data.push_back(0);
            data.back() = static_cast<std::uint8_t>(data.back() | (bits >> i & 1) << (7 - filled % 8));
        }
    };
    for (int block = 0; block < blocks; ++block) {
        const int most_bits = 1 + block * 10 / blocks, difference = block % 2 == 0 ? most_bits / 2 : 0;
        write(difference, 8);
        write(whole(0, 1 << difference) >> 1, difference);
        int place = 1;
        for (int left = whole(0, 63); left > 0 && place < 63; --left) {
            const int run = whole(0, 63 - place < 3 ? 63 - place : 3), bits = whole(1, most_bits);
            write(2 + run * 10 + bits - 1, 8);
            write(whole(0, (1 << bits) - 1), bits);
            place += run + 1;
        }
        if (place < 64) write(0, 8);
    }
    const auto length = static_cast<std::ptrdiff_t>(data.size());
    data.resize(data.size() + baseline::padding_bytes);
    alignas(64) std::int16_t factors[64];
    for (std::int16_t& factor : factors) factor = static_cast<std::int16_t>(whole(1, 255));
    baseline::ScanState start{{data.data()}, data.data() + length, {}, 3};
    for (int i = 0; i < 3; ++i)
        start.components[i] = {&differences,          &coefficients,  factors,
                               i == 0 ? 2 : 1,        i == 0 ? 2 : 1, 0,
                               out + 16 * i * stride, stride};
    baseline::ScanState decoded = start, skipped = start;
    const baseline::BaselineKernel& kernel = kernels().baseline;
    if (!kernel.decode_mcus(decoded, 0, mcus) || !kernel.skip_mcus(skipped, mcus)) std::printf("no scan\n");
    Hash hash;
    hash.add(out, 3 * 16 * stride, 3);
    for (const baseline::ScanState& state : {decoded, skipped})
        for (const baseline::Component& component : state.components) hash.add(&component.predictor, 4, 3);
    hash.print("baseline");
}

}  // namespace
}  // namespace hpcai500

int main() try {
    using namespace hpcai500;
    std::printf("isa %s\n", kernels().isa);
    print_resizes(true);
    print_resizes(false);
    print_convert();
    print_compression();
    print_detection();
    print_baseline();
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
