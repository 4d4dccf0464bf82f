// The inner loops of compression (compression_kernel.h), over the vectors of one instruction set.

namespace hpcai500 {
namespace {
namespace compression {

// ---- From float32 to the wire's type and back.

// Whose squares are summed: of the values before the scale, or after it.
enum class Squared { none, before_scale, after_scale };

// Values of a type in memory, times `scale`, and the sum of their squares.
//
// The order of the sum depends on the values alone: lane i of 32 sums values i, i + 32, ... But steps begin
// where memory has a line, `head` values later. So lane i of `squares` is lane (i + head) % 32 of the sum.
template <class Type, Squared squared>
struct Source {
    using Item = typename Type::Item;
    const Item* first;
    float scale;
    long head = 0;
    Squares32 squares{};

    HPCAI500_INLINE Vec32 scaled(const Vec32& stored) {
        if (squared == Squared::before_scale) add_squares(squares, stored);
        const Vec32 values = stored * scale;
        if (squared == Squared::after_scale) add_squares(squares, values);
        return values;
    }
    HPCAI500_INLINE Vec32 load(long at) { return scaled(load_two<Type>(first + at)); }
    Vec32 load_some(long at, long count) {
        // The head's values end where the first step begins; zeros add nothing to the other sums.
        const long lane = at < head ? step - head : 0;
        alignas(64) Item scratch[2 * step] = {};
        std::memcpy(scratch + lane, first + at, static_cast<std::size_t>(count) * sizeof(Item));
        const Vec32 values = scaled(load_two<Type>(scratch));
        if (lane == 0) return values;
        return load_two<Type>(scratch + lane) * scale;
    }
    double sum() const { return total(squares, step - head); }
};

template <class To, class From>
inline double cast_run(From source, const CastRun& run) {
    source.head = before_line<To>(run.out, run.count, run.stream);
    write_run<To>(source, run.out, run.count, run.stream);
    return source.sum();
}

template <class Wire, bool squared>
double pack_run(const CastRun& run) {
    const auto* const values = static_cast<const float*>(run.source);
    return cast_run<Wire>(Source<Float32, squared ? Squared::before_scale : Squared::none>{values, run.scale},
                          run);
}

template <class Wire, bool squared>
double unpack_run(const CastRun& run) {
    const auto* const values = static_cast<const typename Wire::Item*>(run.source);
    return cast_run<Float32>(Source<Wire, squared ? Squared::after_scale : Squared::none>{values, run.scale},
                             run);
}

// ---- Blocks of 256 floats to a scale and codes, and back.

inline constexpr long block_vectors = quantised_block / 16;
inline constexpr std::uint32_t quiet_nan = 0x7fc00000;

inline std::int64_t scale_place(std::int64_t block) {
    return block / quantised_chunk_blocks * quantised_chunk_bytes + block % quantised_chunk_blocks * 4;
}
inline std::int64_t code_place(std::int64_t block) {
    return block / quantised_chunk_blocks * quantised_chunk_bytes + quantised_chunk_blocks * 4 +
           block % quantised_chunk_blocks * quantised_block;
}

// A block of zeros (or of NaN, by its scale).
inline void store_constant(std::uint8_t* codes, float* residual, const Vec16* kept) {
    std::memset(codes, 0, static_cast<std::size_t>(quantised_block));
    if (residual == nullptr) return;
    for (long v = 0; v < block_vectors; ++v) store(residual + 16 * v, kept != nullptr ? kept[v] : Vec16{});
}

// What the block's 256 values become; returns its scale.
inline float quantise_block(const Vec16* values, std::uint32_t peak, std::uint8_t* codes, float* residual) {
    // From the largest float on, 127 * (peak / 127) is no finite number.
    constexpr std::uint32_t largest_float = 0x7f7fffff;
    // 2^-119: below, the scale would be subnormal and its inverse infinite, or nearly.
    constexpr std::uint32_t smallest_peak = 0x04000000;
    if (peak >= largest_float) {
        store_constant(codes, residual, nullptr);
        return __builtin_bit_cast(float, quiet_nan);
    }
    if (peak < smallest_peak) {
        store_constant(codes, residual, values);
        return 0.0f;
    }
    const float largest = __builtin_bit_cast(float, peak), scale = largest / 127.0f,
                inverse = 127.0f / largest;
    for (long v = 0; v < block_vectors; ++v) {
        const Ints16 rounded = nearest(values[v] * inverse);
        store_bytes(reinterpret_cast<std::int8_t*>(codes) + 16 * v, rounded);
        if (residual != nullptr) store(residual + 16 * v, values[v] - widen(rounded) * scale);
    }
    return scale;
}

template <bool squared>
double quantise_run(const QuantiseRun& run) {
    Squares32 squares{};
    Vec16 values[block_vectors];
    for (std::int64_t block = 0; block < run.blocks; ++block) {
        const float* const source = run.source + block * quantised_block;
        float* const residual = run.residual != nullptr ? run.residual + block * quantised_block : nullptr;
        Ints16 peak{};
        for (long v = 0; v < block_vectors; v += 2) {
            const Vec32 given = load_two<Float32>(source + 16 * v);
            if (squared) add_squares(squares, given);
            Vec32 scaled = given * run.scale;
            if (residual != nullptr) {
                scaled = scaled + load_two<Float32>(residual + 16 * v);
            }
            for (int i = 0; i < 2; ++i) {
                values[v + i] = scaled.half[i];
                peak = larger_magnitude(peak, scaled.half[i]);
            }
        }
        const std::int64_t place = run.first_block + block;
        const float scale =
            quantise_block(values, largest_of(peak), run.buffer + code_place(place), residual);
        std::memcpy(run.buffer + scale_place(place), &scale, sizeof scale);
    }
    return squared ? total(squares) : 0.0;
}

template <bool accumulate, bool squared>
double dequantise_run(const DequantiseRun& run) {
    Squares32 squares{};
    const bool stream = run.stream && reinterpret_cast<std::uintptr_t>(run.target) % line_bytes == 0;
    for (std::int64_t block = 0; block < run.blocks; ++block) {
        const std::int64_t place = run.first_block + block;
        const auto* const codes = reinterpret_cast<const std::int8_t*>(run.buffer + code_place(place));
        float scale;
        std::memcpy(&scale, run.buffer + scale_place(place), sizeof scale);
        float* const target = run.target + block * quantised_block;
        for (long v = 0; v < block_vectors; v += 2) {
            const Vec32 stored{{widen(load_bytes(codes + 16 * v)), widen(load_bytes(codes + 16 * v + 16))}};
            Vec32 values = stored * scale * run.scale;
            if (accumulate) {
                values = load_two<Float32>(target + 16 * v) + values;
            }
            store_two<Float32>(target + 16 * v, values, stream);
            if (squared) add_squares(squares, values);
        }
    }
    return squared ? total(squares) : 0.0;
}

// ---- Sums of squares, and what memory does.

inline double squares_of(const float* values, std::int64_t count) {
    Squares32 squares{};
    long at = 0;
    for (; at + step <= count; at += step) add_squares(squares, load_two<Float32>(values + at));
    alignas(64) float rest[step] = {};
    std::memcpy(rest, values + at, static_cast<std::size_t>(count - at) * sizeof(float));
    add_squares(squares, load_two<Float32>(rest));
    return total(squares);
}

inline void copy_lines(const void* from, void* to, std::int64_t lines) {
    const auto* source = static_cast<const float*>(from);
    auto* out = static_cast<float*>(to);
    for (std::int64_t i = 0; i < lines; ++i) store(out + 16 * i, load(source + 16 * i), true);
}

inline std::uint32_t read_lines(const void* from, std::int64_t lines) {
    const auto* source = static_cast<const float*>(from);
    Ints16 even{}, odd{};
    std::int64_t i = 0;
    for (; i + 2 <= lines; i += 2) {
        even = larger_magnitude(even, load(source + 16 * i));
        odd = larger_magnitude(odd, load(source + 16 * i + 16));
    }
    if (i < lines) even = larger_magnitude(even, load(source + 16 * i));
    const std::uint32_t first = largest_of(even), second = largest_of(odd);
    return first > second ? first : second;
}

constexpr CompressionKernel kernel = {{{pack_run<Float32, false>, pack_run<Float32, true>},
                                       {pack_run<Float16, false>, pack_run<Float16, true>},
                                       {pack_run<BFloat16, false>, pack_run<BFloat16, true>}},
                                      {{unpack_run<Float32, false>, unpack_run<Float32, true>},
                                       {unpack_run<Float16, false>, unpack_run<Float16, true>},
                                       {unpack_run<BFloat16, false>, unpack_run<BFloat16, true>}},
                                      {quantise_run<false>, quantise_run<true>},
                                      {{dequantise_run<false, false>, dequantise_run<false, true>},
                                       {dequantise_run<true, false>, dequantise_run<true, true>}},
                                      squares_of,
                                      fence,
                                      copy_lines,
                                      read_lines};

}  // namespace compression
}  // namespace
}  // namespace hpcai500
