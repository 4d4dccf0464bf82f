// All inner loops, for one instruction set. Included by one file of each, inside its unnamed namespace, which
// before that defines Vec16 (16 floats), Codes16 (16 whole numbers), Peak16 (the largest magnitudes so far),
// Squares32 (32 sums in double) and their operations: names with external linkage would clash between the
// kernels, and the linker could hand AVX-512 code to a processor without it.

inline constexpr long line_bytes = 64;
// Values in a step of every loop: a line of a short type, two of float32.
inline constexpr long step = 32;
// How far ahead a loop asks for what it reads: the hardware's own prefetching ends at every page.
inline constexpr long ahead_bytes = 2048;

inline void prefetch_behind(const void* from) {
    const char* const place = static_cast<const char*>(from) + ahead_bytes;
    __builtin_prefetch(place);
    __builtin_prefetch(place + line_bytes);
}

struct Step {
    Vec16 low, high;
};

inline Step load_step(const float* from) {
    return {load(from), load(from + 16)};
}
inline Step times(Step values, float scale) {
    return {multiply(values.low, scale), multiply(values.high, scale)};
}
inline void store_step(float* out, Step values, bool stream) {
    store(out, values.low, stream);
    store(out + 16, values.high, stream);
}

// The sum of the 32 sums, pairwise in a fixed order.
inline double total(const Squares32& squares) {
    double lane[32];
    store_lanes(lane, squares);
    for (int width = 16; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

#include "cast_kernel.inl"
#include "quantise_kernel.inl"

inline double squares_of(const float* values, std::int64_t count) {
    Squares32 squares{};
    sum_squares(squares, Float32{values, 1.0f}, 0, count);
    return total(squares);
}

inline void copy_lines(const void* from, void* to, std::int64_t lines) {
    const auto* source = static_cast<const float*>(from);
    auto* out = static_cast<float*>(to);
    for (std::int64_t i = 0; i < lines; ++i) store(out + 16 * i, load(source + 16 * i), true);
}

inline std::uint32_t read_lines(const void* from, std::int64_t lines) {
    const auto* source = static_cast<const float*>(from);
    Peak16 even{}, odd{};
    std::int64_t i = 0;
    for (; i + 2 <= lines; i += 2) {
        prefetch_behind(source + 16 * i);
        even = peak_of(even, load(source + 16 * i));
        odd = peak_of(odd, load(source + 16 * i + 16));
    }
    if (i < lines) even = peak_of(even, load(source + 16 * i));
    const std::uint32_t first = largest(even), second = largest(odd);
    return first > second ? first : second;
}

#define HPCAI500_CAST_KERNELS(direction)                             \
    {                                                                \
        {direction<Float32, false>, direction<Float32, true>},       \
            {direction<Float16, false>, direction<Float16, true>}, { \
            direction<BFloat16, false>, direction<BFloat16, true>    \
        }                                                            \
    }

#define HPCAI500_COMPRESSION_KERNEL                                \
    {HPCAI500_CAST_KERNELS(pack_run),                              \
     HPCAI500_CAST_KERNELS(unpack_run),                            \
     {quantise_run<false>, quantise_run<true>},                    \
     {{dequantise_run<false, false>, dequantise_run<false, true>}, \
      {dequantise_run<true, false>, dequantise_run<true, true>}},  \
     squares_of,                                                   \
     fence,                                                        \
     copy_lines,                                                   \
     read_lines}
