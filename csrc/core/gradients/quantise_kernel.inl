// Blocks of 256 floats to a scale and codes, and back. Part of compression_kernel.inl.

inline constexpr long block_vectors = quantised_block / 16;
inline constexpr std::uint32_t quiet_nan = 0x7fc00000;

inline std::uint8_t* scale_place(std::uint8_t* buffer, std::int64_t block) {
    return buffer + block / quantised_chunk_blocks * quantised_chunk_bytes +
           block % quantised_chunk_blocks * 4;
}
inline std::uint8_t* code_place(std::uint8_t* buffer, std::int64_t block) {
    return buffer + block / quantised_chunk_blocks * quantised_chunk_bytes + quantised_chunk_blocks * 4 +
           block % quantised_chunk_blocks * quantised_block;
}

inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// A block of zeros (or of NaN, by its scale).
inline void store_constant(std::uint8_t* codes, float* residual, const Vec16* kept) {
    std::memset(codes, 0, static_cast<std::size_t>(quantised_block));
    if (residual == nullptr) return;
    for (long v = 0; v < block_vectors; ++v)
        store(residual + 16 * v, kept != nullptr ? kept[v] : Vec16{}, false);
}

// What the block's 256 values become; returns its scale.
inline float quantise_block(const Vec16* values, std::uint32_t peak, std::uint8_t* codes, float* residual) {
    // From the largest float on, 127 * (peak / 127) is no finite number.
    constexpr std::uint32_t largest_float = 0x7f7fffff;
    // 2^-119: below, the scale would be subnormal and its inverse infinite, or nearly.
    constexpr std::uint32_t smallest_peak = 0x04000000;
    if (peak >= largest_float) {
        store_constant(codes, residual, nullptr);
        return float_of(quiet_nan);
    }
    if (peak < smallest_peak) {
        store_constant(codes, residual, values);
        return 0.0f;
    }
    const float largest = float_of(peak), scale = largest / 127.0f, inverse = 127.0f / largest;
    for (long v = 0; v < block_vectors; ++v) {
        const Codes16 rounded = nearest(multiply(values[v], inverse));
        store_codes(codes + 16 * v, rounded);
        if (residual != nullptr)
            store(residual + 16 * v, subtract(values[v], multiply(widen(rounded), scale)), false);
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
        Peak16 peak{};
        for (long v = 0; v < block_vectors; v += 2) {
            prefetch_behind(source + 16 * v);
            const Step given = load_step(source + 16 * v);
            if (squared) add_squares(squares, given);
            Step scaled = times(given, run.scale);
            if (residual != nullptr) {
                prefetch_behind(residual + 16 * v);
                const Step carried = load_step(residual + 16 * v);
                scaled = {add(scaled.low, carried.low), add(scaled.high, carried.high)};
            }
            values[v] = scaled.low;
            values[v + 1] = scaled.high;
            peak = peak_of(peak_of(peak, scaled.low), scaled.high);
        }
        const std::int64_t place = run.first_block + block;
        const float scale = quantise_block(values, largest(peak), code_place(run.buffer, place), residual);
        std::memcpy(scale_place(run.buffer, place), &scale, sizeof scale);
    }
    return squared ? total(squares) : 0.0;
}

template <bool accumulate, bool squared>
double dequantise_run(const DequantiseRun& run) {
    Squares32 squares{};
    const bool stream = run.stream && reinterpret_cast<std::uintptr_t>(run.target) % line_bytes == 0;
    auto* const buffer = const_cast<std::uint8_t*>(run.buffer);
    for (std::int64_t block = 0; block < run.blocks; ++block) {
        const std::int64_t place = run.first_block + block;
        const std::uint8_t* const codes = code_place(buffer, place);
        float scale;
        std::memcpy(&scale, scale_place(buffer, place), sizeof scale);
        float* const target = run.target + block * quantised_block;
        for (long v = 0; v < block_vectors; v += 2) {
            prefetch_behind(codes + 16 * v);
            const Step stored{load_codes(codes + 16 * v), load_codes(codes + 16 * v + 16)};
            Step values = times(times(stored, scale), run.scale);
            if (accumulate) {
                prefetch_behind(target + 16 * v);
                const Step held = load_step(target + 16 * v);
                values = {add(held.low, values.low), add(held.high, values.high)};
            }
            store_step(target + 16 * v, values, stream);
            if (squared) add_squares(squares, values);
        }
    }
    return squared ? total(squares) : 0.0;
}
