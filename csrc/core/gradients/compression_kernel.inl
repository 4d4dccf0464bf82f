// The inner loops of compression (compression_kernel.h), over the vectors of one instruction set.

namespace hpcai500 {
namespace {
namespace compression {

// How far ahead a loop asks for what it reads: the hardware's own prefetching ends at every page.
inline constexpr long ahead_bytes = 2048;

inline void prefetch_behind(const void* from) {
    const char* const place = static_cast<const char*>(from) + ahead_bytes;
    __builtin_prefetch(place);
    __builtin_prefetch(place + line_bytes);
}

// ---- From float32 to the wire's type and back.

// Values of a type in memory, times `scale` if they are `scaled`.
template <class Type, bool scaled>
struct Source {
    using Item = typename Type::Item;
    const Item* first;
    float scale;
    HPCAI500_INLINE Vec32 load(long at) const {
        prefetch_behind(first + at);
        const Vec32 values = load_two<Type>(first + at);
        return scaled ? values * scale : values;
    }
    Vec32 load_some(long at, long count) const {
        alignas(64) Item scratch[step] = {};
        std::memcpy(scratch, first + at, static_cast<std::size_t>(count) * sizeof(Item));
        const Vec32 values = load_two<Type>(scratch);
        return scaled ? values * scale : values;
    }
};

template <class From>
HPCAI500_INLINE void sum_squares(Squares32& squares, From source, long begin, long end) {
    long at = begin;
    for (; at + step <= end; at += step) add_squares(squares, source.load(at));
    if (at < end) add_squares(squares, source.load_some(at, end - at));
}

// Squares and casts take turns over parts that stay in the first-level cache. Both passes read the same
// values, but the sum's lanes are counted from the run's start and the lines from where memory has them.
template <class To, bool squared, class From, class Squared>
inline double cast_run(const From& source, const Squared& summed, const CastRun& run) {
    constexpr long part = 4096;
    Squares32 squares{};
    write_run<To>(source, run.out, run.count, run.stream, squared ? part : run.count,
                  [&squares, summed](long begin, long end) {
                      if (squared) sum_squares(squares, summed, begin, end);
                  });
    return squared ? total(squares) : 0.0;
}

template <class Wire, bool squared>
double pack_run(const CastRun& run) {
    const auto* const values = static_cast<const float*>(run.source);
    return cast_run<Wire, squared>(Source<Float32, true>{values, run.scale},
                                   Source<Float32, false>{values, 1.0f}, run);
}

template <class Wire, bool squared>
double unpack_run(const CastRun& run) {
    const Source<Wire, true> source{static_cast<const typename Wire::Item*>(run.source), run.scale};
    return cast_run<Float32, squared>(source, source, run);
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
            prefetch_behind(source + 16 * v);
            const Vec32 given = load_two<Float32>(source + 16 * v);
            if (squared) add_squares(squares, given);
            Vec32 scaled = given * run.scale;
            if (residual != nullptr) {
                prefetch_behind(residual + 16 * v);
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
            prefetch_behind(codes + 16 * v);
            const Vec32 stored{{widen(load_bytes(codes + 16 * v)), widen(load_bytes(codes + 16 * v + 16))}};
            Vec32 values = stored * scale * run.scale;
            if (accumulate) {
                prefetch_behind(target + 16 * v);
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
    sum_squares(squares, Source<Float32, false>{values, 1.0f}, 0, count);
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
        prefetch_behind(source + 16 * i);
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
