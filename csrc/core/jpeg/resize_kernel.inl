// The resize of RGBX pixels (RowGroup in resize_kernel.h), over the vectors of one instruction set.
//
// The vertical pass comes first, in float, and writes column by column: 16 floats per source column, 4 output
// rows of R, G, B, X. So the horizontal pass needs one load and one multiply-add per tap for all rows and
// channels, and one 16 x 16 transposition in registers turns 16 output columns into rows of one channel each.

namespace hpcai500 {
namespace {
namespace resize {

// Four pixels, each to the same place of its own column of the workspace.
inline void scatter_pixels(float* out, const Vec16& pixels) {
    store_quarter<0>(out, pixels);
    store_quarter<1>(out + column_floats, pixels);
    store_quarter<2>(out + 2 * column_floats, pixels);
    store_quarter<3>(out + 3 * column_floats, pixels);
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
            Vec16 sum0{}, sum1{}, sum2{}, sum3{};
            for (int tap = 0; tap < count; ++tap) {
                const std::uint8_t* pixels = source[tap] + column * 4;
                const float weight = weights[tap];
                sum0 = multiply_add(widen(load_bytes(pixels)), weight, sum0);
                sum1 = multiply_add(widen(load_bytes(pixels + 16)), weight, sum1);
                sum2 = multiply_add(widen(load_bytes(pixels + 32)), weight, sum2);
                sum3 = multiply_add(widen(load_bytes(pixels + 48)), weight, sum3);
            }
            float* at = out + column * column_floats;
            scatter_pixels(at, sum0);
            scatter_pixels(at + 4 * column_floats, sum1);
            scatter_pixels(at + 8 * column_floats, sum2);
            scatter_pixels(at + 12 * column_floats, sum3);
        }
        for (; column < g.columns; column += 4) {
            Vec16 sum{};
            for (int tap = 0; tap < count; ++tap)
                sum = multiply_add(widen(load_bytes(source[tap] + column * 4)), weights[tap], sum);
            scatter_pixels(out + column * column_floats, sum);
        }
    }
}

// Horizontal pass for output columns [column, column + 16): tile[i] is one output column of 4 rows x RGBX.
HPCAI500_INLINE void blend_columns(const RowGroup& g, int column, const Vec16& scale, const Vec16& bias,
                                   Vec16* tile) {
    for (int i = 0; i < 16; ++i) {
        // Columns behind the last one repeat it: computed, never stored.
        const int clipped = smaller(column + i, g.size - 1);
        const int output = g.flip ? g.size - 1 - clipped : clipped;
        const float* weights = g.column_weights + static_cast<long>(output) * g.weight_stride;
        const float* source = g.workspace + static_cast<long>(g.column_start[output]) * column_floats;
        const int count = g.column_count[output];
        Vec16 sum{};
        for (int tap = 0; tap < count; ++tap)
            sum = multiply_add(load(source + tap * column_floats), weights[tap], sum);
        tile[i] = multiply_add(sum, scale, bias);
    }
}

// One number for each channel, in all four pixels.
inline Vec16 in_pixels(const float* channels) {
    const float pixel[4] = {channels[0], channels[1], channels[2], 0};
    return repeat_quarter(pixel);
}

// No level, and no normalised level, is NaN.
struct NoNaN : BFloat16 {
    HPCAI500_INLINE static void narrow(Item* to, Floats values) {
        store_words(to, upper_words(round_up(values)));
    }
};

// Full vectors go straight to the image. Where they are whole cache lines they bypass the cache: the batch is
// read by someone else, later, and writing around the cache saves reading the line first.
// Half a line of a short type at a time would make the write-combining buffers thrash: those do not.
template <class To>
inline void store_run(typename To::Item* out, const Vec16& values, int count) {
    if (count == 16) {
        if constexpr (sizeof(*out) == 4)
            store(out, values, reinterpret_cast<std::uintptr_t>(out) % 64 == 0);
        else
            store<To>(out, values);
        return;
    }
    alignas(64) typename To::Item whole[16];
    store<To>(whole, values);
    for (int i = 0; i < count; ++i) out[i] = whole[i];
}

template <class To>
void resize_rows_planar(const RowGroup& g) {
    blend_rows(g);
    const Vec16 scale = in_pixels(g.scale), bias = in_pixels(g.bias);
    auto* image = static_cast<typename To::Item*>(g.image);
    const long size = g.size;
    for (int column = 0; column < g.size; column += 16) {
        alignas(64) Vec16 tile[16];
        blend_columns(g, column, scale, bias, tile);
        transpose(tile);
        const int count = smaller(16, g.size - column);
        for (int row = 0; row < g.rows; ++row) {
            for (int channel = 0; channel < 3; ++channel) {
                auto* out = image + (channel * size + g.row + row) * size + column;
                store_run<To>(out, tile[row * 4 + channel], count);
            }
        }
    }
}

template <class To>
void resize_rows_interleaved(const RowGroup& g) {
    blend_rows(g);
    const Vec16 scale = in_pixels(g.scale), bias = in_pixels(g.bias);
    auto* image = static_cast<typename To::Item*>(g.image);
    const long size = g.size;
    for (int column = 0; column < g.size; column += 16) {
        alignas(64) Vec16 tile[16];
        blend_columns(g, column, scale, bias, tile);
        const int values = 3 * smaller(16, g.size - column);
        for (int row = 0; row < g.rows; ++row) {
            // Pixels of 4 floats written 3 apart: each X is overwritten by the next pixel's R.
            alignas(64) float packed[3 * 16 + 4];
            for (int i = 0; i < 16; ++i)
                std::memcpy(packed + 3 * i, reinterpret_cast<const float*>(&tile[i]) + row * 4, 16);
            auto* out = image + ((g.row + row) * size + column) * 3;
            for (int part = 0; part < values; part += 16)
                store_run<To>(out + part, load(packed + part), smaller(16, values - part));
        }
    }
}

}  // namespace resize
}  // namespace
}  // namespace hpcai500
