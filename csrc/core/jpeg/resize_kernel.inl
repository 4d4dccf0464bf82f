// The resize kernel. A translation unit defines Vec16 (16 floats) and its operations for one instruction set,
// in its own unnamed namespace, and then includes this file: names with external linkage would clash between
// the kernels, and the linker could hand AVX-512 code to a processor without it.
//
// The vertical pass comes first, in float, and writes column by column: 16 floats per source column, 4 output
// rows of R, G, B, X. So the horizontal pass needs one load and one multiply-add per tap for all rows and
// channels, and one 16 x 16 transposition in registers turns 16 output columns into rows of one channel each.

inline int lower(int a, int b) {
    return a < b ? a : b;
}

// Vertical pass: g.workspace[column * 16 + row * 4 + channel].
inline void blend_rows(const RowGroup& g) {
    for (int row = 0; row < group_rows; ++row) {
        const std::uint8_t* const* source = g.source_rows + g.first_row[row];
        const float* weights = g.row_weights[row];
        const int count = g.row_count[row];
        float* out = g.workspace + row * 4;
        int column = 0;
        // 16 pixels at a time keep four independent sums in flight; the rest goes 4 pixels at a time.
        for (; column + 16 <= g.columns; column += 16) {
            Vec16 sum0 = zero(), sum1 = zero(), sum2 = zero(), sum3 = zero();
            for (int tap = 0; tap < count; ++tap) {
                const std::uint8_t* pixels = source[tap] + column * 4;
                const float weight = weights[tap];
                sum0 = multiply_add(load_bytes(pixels), weight, sum0);
                sum1 = multiply_add(load_bytes(pixels + 16), weight, sum1);
                sum2 = multiply_add(load_bytes(pixels + 32), weight, sum2);
                sum3 = multiply_add(load_bytes(pixels + 48), weight, sum3);
            }
            float* at = out + column * column_floats;
            scatter_pixels(at, sum0);
            scatter_pixels(at + 4 * column_floats, sum1);
            scatter_pixels(at + 8 * column_floats, sum2);
            scatter_pixels(at + 12 * column_floats, sum3);
        }
        for (; column < g.columns; column += 4) {
            Vec16 sum = zero();
            for (int tap = 0; tap < count; ++tap)
                sum = multiply_add(load_bytes(source[tap] + column * 4), weights[tap], sum);
            scatter_pixels(out + column * column_floats, sum);
        }
    }
}

// Horizontal pass for output columns [column, column + 16): tile[i] is one output column of 4 rows x RGBX.
inline void blend_columns(const RowGroup& g, int column, Vec16 scale, Vec16 bias, Vec16* tile) {
    for (int i = 0; i < 16; ++i) {
        // Columns behind the last one repeat it: computed, never stored.
        const int clipped = lower(column + i, g.size - 1);
        const int output = g.flip ? g.size - 1 - clipped : clipped;
        const float* weights = g.column_weights + static_cast<long>(output) * g.weight_stride;
        const float* source = g.workspace + static_cast<long>(g.column_start[output]) * column_floats;
        const int count = g.column_count[output];
        Vec16 sum = zero();
        for (int tap = 0; tap < count; ++tap)
            sum = multiply_add(load(source + tap * column_floats), weights[tap], sum);
        tile[i] = scale_and_shift(sum, scale, bias);
    }
}

// Full vectors go straight to the image. Where they are whole cache lines they bypass the cache: the batch is
// read by someone else, later, and writing around the cache saves reading the line first.
template <class Store>
inline void store_run(typename Store::Element* out, Vec16 values, int count, bool stream) {
    if (count == 16) {
        Store::store(out, values, stream);
        return;
    }
    alignas(64) typename Store::Element whole[16];
    Store::store(whole, values, false);
    for (int i = 0; i < count; ++i) out[i] = whole[i];
}

template <class Store>
inline bool whole_lines(const typename Store::Element* out) {
    return Store::can_stream && (reinterpret_cast<std::uintptr_t>(out) & 63) == 0;
}

template <class Store>
void resize_rows_planar(const RowGroup& g) {
    blend_rows(g);
    const Vec16 scale = repeat_channels(g.scale), bias = repeat_channels(g.bias);
    auto* image = static_cast<typename Store::Element*>(g.image);
    const long size = g.size;
    for (int column = 0; column < g.size; column += 16) {
        alignas(64) Vec16 tile[16];
        blend_columns(g, column, scale, bias, tile);
        transpose(tile);
        const int count = lower(16, g.size - column);
        for (int row = 0; row < g.rows; ++row) {
            for (int channel = 0; channel < 3; ++channel) {
                auto* out = image + (channel * size + g.row + row) * size + column;
                store_run<Store>(out, tile[row * 4 + channel], count, whole_lines<Store>(out));
            }
        }
    }
}

template <class Store>
void resize_rows_interleaved(const RowGroup& g) {
    blend_rows(g);
    const Vec16 scale = repeat_channels(g.scale), bias = repeat_channels(g.bias);
    auto* image = static_cast<typename Store::Element*>(g.image);
    const long size = g.size;
    for (int column = 0; column < g.size; column += 16) {
        alignas(64) Vec16 tile[16];
        blend_columns(g, column, scale, bias, tile);
        const int values = 3 * lower(16, g.size - column);
        for (int row = 0; row < g.rows; ++row) {
            // Pixels of 4 floats written 3 apart: each X is overwritten by the next pixel's R.
            alignas(64) float packed[3 * 16 + 4];
            for (int i = 0; i < 16; ++i) store_pixel(packed + 3 * i, tile[i], row);
            auto* out = image + ((g.row + row) * size + column) * 3;
            for (int part = 0; part < values; part += 16)
                store_run<Store>(out + part, load(packed + part), lower(16, values - part),
                                 whole_lines<Store>(out));
        }
    }
}

struct StoreFloat32 {
    using Element = float;
    static constexpr bool can_stream = true;
    static void store(Element* out, Vec16 values, bool stream) { store_float32(out, values, stream); }
};
struct StoreFloat16 {
    using Element = std::uint16_t;
    static constexpr bool can_stream =
        false;  // half a line at a time: the write-combining buffers would thrash
    static void store(Element* out, Vec16 values, bool) { store_float16(out, values); }
};
struct StoreBfloat16 {
    using Element = std::uint16_t;
    static constexpr bool can_stream = false;
    static void store(Element* out, Vec16 values, bool) { store_bfloat16(out, values); }
};
struct StoreUint8 {
    using Element = std::uint8_t;
    static constexpr bool can_stream = false;
    static void store(Element* out, Vec16 values, bool) { store_uint8(out, values); }
};

// In the order of the enums DType and Layout.
#define HPCAI500_RESIZE_KERNEL                                                     \
    {{{resize_rows_planar<StoreFloat32>, resize_rows_interleaved<StoreFloat32>},   \
      {resize_rows_planar<StoreFloat16>, resize_rows_interleaved<StoreFloat16>},   \
      {resize_rows_planar<StoreBfloat16>, resize_rows_interleaved<StoreBfloat16>}, \
      {resize_rows_planar<StoreUint8>, resize_rows_interleaved<StoreUint8>}},      \
     HPCAI500_PLANAR_KERNEL,                                                       \
     fence}
