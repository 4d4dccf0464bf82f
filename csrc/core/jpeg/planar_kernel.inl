// The resize of planes (PlaneGroup in planar_kernel.h), over the vectors of one instruction set; behind
// resize_kernel.inl, whose store_run() it uses.
//
// As there, the vertical pass comes first and writes column by column: here 16 floats per source column are
// 16 output rows of one plane, so the horizontal pass needs one load and one multiply-add per tap for all of
// them.

namespace hpcai500 {
namespace {
namespace resize {

template <int number>
struct Constant {
    constexpr operator int() const { return number; }
};

// As many taps as `action` is called with: as a constant where they are few, so that its loops are unrolled.
template <class Action>
HPCAI500_INLINE void with_taps(int taps, const Action& action) {
    switch (taps) {
        case 2:
            return action(Constant<2>{});
        case 3:
            return action(Constant<3>{});
        case 4:
            return action(Constant<4>{});
        case 5:
            return action(Constant<5>{});
        default:
            return action(taps);
    }
}

// Vertical pass: part.workspace[column * 16 + row].
template <class Count>
HPCAI500_INLINE void blend_plane_rows(const PlanePart& part, Count taps) {
    for (int column = 0; column < part.columns; column += sample_block) {
        alignas(64) Vec16 tile[plane_rows];
        const float* weights = part.row_weights;
        for (int row = 0; row < plane_rows; ++row, weights += taps) {
            const std::uint8_t* const* source = part.source_rows + part.first_row[row];
            Vec16 sum{};
            for (int tap = 0; tap < taps; ++tap)
                sum = multiply_add(widen(load_bytes(source[tap] + column)), weights[tap], sum);
            tile[row] = sum;
        }
        transpose(tile);
        float* out = part.workspace + static_cast<long>(column) * plane_rows;
        for (int i = 0; i < sample_block; ++i) store(out + i * plane_rows, tile[i]);
    }
}

inline void blend_plane_rows(const PlanePart& part) {
    with_taps(part.row_taps, [&](auto taps) { blend_plane_rows(part, taps); });
}

// Horizontal pass for output columns [column, column + 16) of all 16 rows: tile[i] is one of them.
inline void blend_plane_columns(const PlanePart& part, int column, Vec16* tile) {
    with_taps(part.column_taps, [&](auto taps) {
        const float* weights = part.column_weights + static_cast<long>(column) * taps;
        for (int i = 0; i < 16; ++i, weights += taps) {
            const float* source =
                part.workspace + static_cast<long>(part.column_start[column + i]) * plane_rows;
            Vec16 sum{};
            for (int tap = 0; tap < taps; ++tap)
                sum = multiply_add(load(source + tap * plane_rows), weights[tap], sum);
            tile[i] = sum;
        }
    });
}

// Output columns [column, column + 16) of 16 rows: red[r], green[r] and blue[r] are their values in row r.
HPCAI500_INLINE void make_tile(const PlaneGroup& g, int column, Vec16* red, Vec16* green, Vec16* blue) {
    // Red, green and blue hold Y, Cb and Cr first.
    Vec16* const tiles[3] = {red, green, blue};
    for (int plane = 0; plane < g.plane_count; ++plane)
        blend_plane_columns(g.planes[plane], column, tiles[plane]);
    const Vec16 middle = repeat(-128.0f);
    for (int i = 0; i < 16; ++i) {
        const Vec16 y = red[i];
        if (g.plane_count == 1) {
            red[i] = clamp(y, 0.0f, 255.0f);
            continue;
        }
        const Vec16 cb = green[i] + middle, cr = blue[i] + middle;
        // JFIF's (ITU-T T.871) conversion.
        red[i] = clamp(multiply_add(cr, 1.402f, y), 0.0f, 255.0f);
        green[i] = clamp(multiply_add(cr, -0.714136286f, multiply_add(cb, -0.344136286f, y)), 0.0f, 255.0f);
        blue[i] = clamp(multiply_add(cb, 1.772f, y), 0.0f, 255.0f);
    }
    transpose(red);
    if (g.plane_count == 1) {
        for (int i = 0; i < 16; ++i) green[i] = blue[i] = red[i];
    } else {
        transpose(green);
        transpose(blue);
    }
    Vec16* const channels[3] = {red, green, blue};
    for (int channel = 0; channel < 3; ++channel) {
        const Vec16 scale = repeat(g.scale[channel]), bias = repeat(g.bias[channel]);
        for (int i = 0; i < 16; ++i) channels[channel][i] = multiply_add(channels[channel][i], scale, bias);
    }
}

template <class To>
void resize_planes_planar(const PlaneGroup& g) {
    for (int plane = 0; plane < g.plane_count; ++plane) blend_plane_rows(g.planes[plane]);
    auto* image = static_cast<typename To::Item*>(g.image);
    const long size = g.size;
    for (int column = 0; column < g.size; column += 16) {
        alignas(64) Vec16 tile[3][16];
        make_tile(g, column, tile[0], tile[1], tile[2]);
        const int count = smaller(16, g.size - column);
        for (int channel = 0; channel < 3; ++channel) {
            for (int row = 0; row < g.rows; ++row) {
                auto* out = image + (channel * size + g.row + row) * size + column;
                store_run<To>(out, tile[channel][row], count);
            }
        }
    }
}

template <class To>
void resize_planes_interleaved(const PlaneGroup& g) {
    for (int plane = 0; plane < g.plane_count; ++plane) blend_plane_rows(g.planes[plane]);
    auto* image = static_cast<typename To::Item*>(g.image);
    const long size = g.size;
    for (int column = 0; column < g.size; column += 16) {
        alignas(64) Vec16 tile[3][16];
        make_tile(g, column, tile[0], tile[1], tile[2]);
        const int values = 3 * smaller(16, g.size - column);
        for (int row = 0; row < g.rows; ++row) {
            Vec16 packed[3];
            interleave(tile[0][row], tile[1][row], tile[2][row], packed);
            auto* out = image + ((g.row + row) * size + column) * 3;
            for (int part = 0; part < 3; ++part)
                if (part * 16 < values)
                    store_run<To>(out + part * 16, packed[part], smaller(16, values - part * 16));
        }
    }
}

// In the order of the enums DType and Layout.
constexpr ResizeKernel kernel = {{{resize_rows_planar<Float32>, resize_rows_interleaved<Float32>},
                                  {resize_rows_planar<Float16>, resize_rows_interleaved<Float16>},
                                  {resize_rows_planar<NoNaN>, resize_rows_interleaved<NoNaN>},
                                  {resize_rows_planar<UInt8>, resize_rows_interleaved<UInt8>}},
                                 {{resize_planes_planar<Float32>, resize_planes_interleaved<Float32>},
                                  {resize_planes_planar<Float16>, resize_planes_interleaved<Float16>},
                                  {resize_planes_planar<NoNaN>, resize_planes_interleaved<NoNaN>},
                                  {resize_planes_planar<UInt8>, resize_planes_interleaved<UInt8>}},
                                 fence};

}  // namespace resize
}  // namespace
}  // namespace hpcai500
