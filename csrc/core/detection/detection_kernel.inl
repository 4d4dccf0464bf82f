// The inner loops of NMS and RoIAlign (detection_kernel.h), over the vectors of one instruction set: here
// single registers, of float or double, and the types in memory that they are loaded from.

namespace hpcai500 {
namespace {
namespace detection {

// Which NaN comes out of a sum is the compiler's choice: here it is always the same one.
struct OneNaN : BFloat16 {
    HPCAI500_INLINE static void narrow(Item* to, Floats values) {
        store_words(to, upper_words(values == values ? round_up(values) : Bits{} + 0x7fc00000));
    }
};

template <class Type>
constexpr int lanes_of = static_cast<int>(sizeof(typename Type::Vector) / sizeof(typename Type::Real));

template <class Type>
constexpr bool is_short = sizeof(typename Type::Item) < sizeof(typename Type::Real);

// Fewer values than a vector has: what is missing is zero.
template <class Type>
inline typename Type::Vector load_some(const typename Type::Item* from, int count) {
    typename Type::Item padded[lanes_of<Type>] = {};
    std::memcpy(padded, from, static_cast<std::size_t>(count) * sizeof(typename Type::Item));
    return Type::widen(padded);
}

template <class Type>
void narrow_all(const float* from, void* to, std::int64_t count) {
    using Vector = typename Type::Vector;
    constexpr int width = lanes_of<Type>;
    auto* out = static_cast<typename Type::Item*>(to);
    std::int64_t i = 0;
    for (; i + width <= count; i += width) Type::narrow(out + i, load_vector<Vector>(from + i));
    if (i == count) return;
    // The last ones with some of those before, again.
    if (i > 0) return Type::narrow(out + count - width, load_vector<Vector>(from + count - width));
    float values[width] = {};
    typename Type::Item narrowed[width];
    std::memcpy(values, from, static_cast<std::size_t>(count) * sizeof *values);
    Type::narrow(narrowed, load_vector<Vector>(values));
    std::memcpy(out, narrowed, static_cast<std::size_t>(count) * sizeof *narrowed);
}

template <class Type>
inline void widen_all(const typename Type::Item* from, typename Type::Real* to, std::int64_t count) {
    constexpr int width = lanes_of<Type>;
    std::int64_t i = 0;
    for (; i + width <= count; i += width) store_vector(to + i, Type::widen(from + i));
    if (i == count) return;
    if (i > 0) return store_vector(to + count - width, Type::widen(from + count - width));
    const auto values = load_some<Type>(from, static_cast<int>(count));
    std::memcpy(to, &values, static_cast<std::size_t>(count) * sizeof *to);
}

// ---- RoIAlign.

// A few vectors of channels of one bin: the sum over its pixels.
template <class Type, int vectors>
inline void pool_channels(const PoolCall<typename Type::Real>& call, int row_bin, int column_bin,
                          const typename Type::Item* channels, typename Type::Real* sums) {
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    typename Type::Vector sum[vectors] = {};
    for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
        const typename Type::Item* row = channels + rows.index[r] * call.width * call.channels;
        for (int c = columns.begin[column_bin]; c < columns.begin[column_bin + 1]; ++c) {
            const typename Type::Real weight = rows.weight[r] * columns.weight[c];
            const typename Type::Item* pixel = row + columns.index[c] * call.channels;
            for (int v = 0; v < vectors; ++v) sum[v] += weight * Type::widen(pixel + v * lanes_of<Type>);
        }
    }
    for (int v = 0; v < vectors; ++v) store_vector(sums + v * lanes_of<Type>, sum[v]);
}

// Fewer channels than a vector has.
template <class Type>
inline void pool_last_channels(const PoolCall<typename Type::Real>& call, int row_bin, int column_bin,
                               const typename Type::Item* channels, int count, typename Type::Real* sums) {
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    typename Type::Vector sum{};
    for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
        const typename Type::Item* row = channels + rows.index[r] * call.width * call.channels;
        for (int c = columns.begin[column_bin]; c < columns.begin[column_bin + 1]; ++c) {
            const typename Type::Real weight = rows.weight[r] * columns.weight[c];
            sum += weight * load_some<Type>(row + columns.index[c] * call.channels, count);
        }
    }
    store_vector(sums, sum);
}

// Row of bins x channels -> channels x row of bins, in the feature type.
template <class Type>
inline void store_bins(const PoolCall<typename Type::Real>& call, int row_bin, std::int64_t first_channel,
                       int count) {
    using Item = typename Type::Item;
    const int bins = call.taps.column_bins;
    const auto* sums = reinterpret_cast<const Item*>(call.workspace);
    if constexpr (is_short<Type>) {
        narrow_all<Type>(call.workspace, call.narrow_workspace,
                         static_cast<std::int64_t>(bins) * channel_block);
        sums = static_cast<const Item*>(call.narrow_workspace);
    }
    const std::int64_t plane = static_cast<std::int64_t>(call.taps.row_bins) * bins;
    Item* out = static_cast<Item*>(call.pooled) + first_channel * plane + row_bin * bins;
    for (int channel = 0; channel < count; ++channel)
        for (int bin = 0; bin < bins; ++bin) out[channel * plane + bin] = sums[bin * channel_block + channel];
}

template <class Type>
void pool_channels_last(const PoolCall<typename Type::Real>& call) {
    constexpr int vectors = sums_in_registers < channel_block / lanes_of<Type>
                                ? sums_in_registers
                                : channel_block / lanes_of<Type>;
    const auto* image = static_cast<const typename Type::Item*>(call.image);
    for (std::int64_t first = 0; first < call.channels; first += channel_block) {
        const std::int64_t left = call.channels - first;
        const int count = left < channel_block ? static_cast<int>(left) : channel_block;
        for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin) {
            for (int bin = 0; bin < call.taps.column_bins; ++bin) {
                typename Type::Real* sums = call.workspace + bin * channel_block;
                int done = 0;
                for (; done + vectors * lanes_of<Type> <= count; done += vectors * lanes_of<Type>)
                    pool_channels<Type, vectors>(call, row_bin, bin, image + first + done, sums + done);
                for (; done + lanes_of<Type> <= count; done += lanes_of<Type>)
                    pool_channels<Type, 1>(call, row_bin, bin, image + first + done, sums + done);
                if (done < count)
                    pool_last_channels<Type>(call, row_bin, bin, image + first + done, count - done,
                                             sums + done);
            }
            store_bins<Type>(call, row_bin, first, count);
        }
    }
}

// sum[0..count) += weight * row[0..count), or = for the first. Whole vectors are read where `readable`
// elements allow: what they hold behind `count` goes where nobody looks.
template <class Type>
inline void add_row(const typename Type::Item* row, std::int64_t readable, typename Type::Real weight,
                    std::int64_t count, bool first, typename Type::Real* sum) {
    using Vector = typename Type::Vector;
    for (std::int64_t i = 0; i < count; i += lanes_of<Type>) {
        const Vector values = i + lanes_of<Type> <= readable
                                  ? Type::widen(row + i)
                                  : load_some<Type>(row + i, static_cast<int>(readable - i));
        const Vector before = first ? Vector{} : load_vector<Vector>(sum + i);
        store_vector(sum + i, before + weight * values);
    }
}

// Vertically first: whole stretches of a row fill vectors, where single pixels of a plane would not.
template <class Type>
void pool_channels_first(const PoolCall<typename Type::Real>& call) {
    using Item = typename Type::Item;
    using Real = typename Type::Real;
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    const int span_begin = call.taps.column_begin, span = call.taps.column_end - span_begin;
    const std::int64_t plane = call.height * call.width;
    // A row of bins that changes its type as a whole: one by one, each bin would wait for memory.
    Real* const wide = call.workspace + call.width + channel_block;
    auto* out = static_cast<Item*>(call.pooled);
    for (std::int64_t channel = 0; channel < call.channels; ++channel) {
        const Item* pixels = static_cast<const Item*>(call.image) + channel * plane;
        const std::int64_t readable = (call.channels - channel) * plane;
        for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin) {
            const int begin = rows.begin[row_bin], end = rows.begin[row_bin + 1];
            for (int r = begin; r < end; ++r) {
                const std::int64_t place = rows.index[r] * call.width + span_begin;
                add_row<Type>(pixels + place, readable - place, rows.weight[r], span, r == begin,
                              call.workspace);
            }
            for (int bin = 0; bin < call.taps.column_bins; ++bin) {
                Real sum = 0;
                for (int c = columns.begin[bin]; begin < end && c < columns.begin[bin + 1]; ++c)
                    sum += columns.weight[c] * call.workspace[columns.index[c] - span_begin];
                if constexpr (is_short<Type>)
                    wide[bin] = sum;
                else
                    *out++ = sum;
            }
            if constexpr (is_short<Type>) {
                narrow_all<Type>(wide, out, call.taps.column_bins);
                out += call.taps.column_bins;
            }
        }
    }
}

template <class Type>
void spread_channels_last(const SpreadCall<typename Type::Real>& call) {
    using Real = typename Type::Real;
    using Vector = typename Type::Vector;
    constexpr int vectors = channel_block / lanes_of<Type>;
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    const int bins = call.taps.column_bins;
    const std::int64_t plane = static_cast<std::int64_t>(call.taps.row_bins) * bins;
    const auto* gradient = static_cast<const typename Type::Item*>(call.gradient);
    const int used = (call.channels + lanes_of<Type> - 1) / lanes_of<Type>;
    for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin) {
        bool touched = false;
        for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r)
            touched |= rows.index[r] >= call.row_begin && rows.index[r] < call.row_end;
        if (!touched) continue;
        for (int bin = 0; bin < bins; ++bin) {
            typename Type::Item values[channel_block] = {};
            for (int channel = 0; channel < call.channels; ++channel)
                values[channel] = gradient[channel * plane + row_bin * bins + bin];
            Vector value[vectors];
            for (int v = 0; v < vectors; ++v) value[v] = Type::widen(values + v * lanes_of<Type>);
            for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
                if (rows.index[r] < call.row_begin || rows.index[r] >= call.row_end) continue;
                Real* row = call.tile + (rows.index[r] - call.row_begin) * call.width * channel_block;
                for (int c = columns.begin[bin]; c < columns.begin[bin + 1]; ++c) {
                    const Real weight = rows.weight[r] * columns.weight[c];
                    Real* pixel = row + static_cast<std::int64_t>(columns.index[c]) * channel_block;
                    for (int v = 0; v < used; ++v) {
                        Real* place = pixel + v * lanes_of<Type>;
                        store_vector(place, load_vector<Vector>(place) + weight * value[v]);
                    }
                }
            }
        }
    }
}

template <class Type>
void spread_channels_first(const SpreadCall<typename Type::Real>& call) {
    using Real = typename Type::Real;
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    const int span_begin = call.taps.column_begin, span = call.taps.column_end - span_begin;
    const int bins = call.taps.column_bins;
    Real* const wide = call.workspace + call.width + channel_block;
    const auto* gradient = static_cast<const typename Type::Item*>(call.gradient);
    for (int channel = 0; channel < call.channels; ++channel) {
        Real* plane = call.tile + channel * (call.row_end - call.row_begin) * call.width;
        for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin, gradient += bins) {
            Real* sums = call.workspace;
            for (int column = 0; column < span; ++column) sums[column] = 0;
            const Real* values = wide;
            if constexpr (is_short<Type>)
                widen_all<Type>(gradient, wide, bins);
            else
                values = gradient;
            for (int bin = 0; bin < bins; ++bin) {
                const Real value = values[bin];
                for (int c = columns.begin[bin]; c < columns.begin[bin + 1]; ++c)
                    sums[columns.index[c] - span_begin] += columns.weight[c] * value;
            }
            for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
                if (rows.index[r] < call.row_begin || rows.index[r] >= call.row_end) continue;
                Real* row = plane + (rows.index[r] - call.row_begin) * call.width + span_begin;
                for (int column = 0; column < span; ++column) row[column] += rows.weight[r] * sums[column];
            }
        }
    }
}

// ---- NMS.

// Divides as torchvision does, so that a box on the threshold meets the same fate.

template <class Type, class Mark>
void suppress(const BoxColumns<typename Type::Real>& boxes, const int* keepers, int count, int begin, int end,
              typename Type::Real threshold, Mark* marks) {
    using Vector = typename Type::Vector;
    typedef Mark Marks __attribute__((vector_size(vector_bytes)));
    constexpr int width = lanes_of<Type>;
    const Vector zero{};
    for (int j = begin; j < end; j += width) {
        const auto x1 = load_vector<Vector>(boxes.x1 + j), y1 = load_vector<Vector>(boxes.y1 + j);
        const auto x2 = load_vector<Vector>(boxes.x2 + j), y2 = load_vector<Vector>(boxes.y2 + j);
        const auto area = load_vector<Vector>(boxes.area + j);
        auto marked = load_vector<Marks>(marks + j);
        for (int k = 0; k < count; ++k) {
            const int i = keepers[k];
            const Vector left = boxes.x1[i] > x1 ? zero + boxes.x1[i] : x1;
            const Vector top = boxes.y1[i] > y1 ? zero + boxes.y1[i] : y1;
            const Vector right = boxes.x2[i] < x2 ? zero + boxes.x2[i] : x2;
            const Vector bottom = boxes.y2[i] < y2 ? zero + boxes.y2[i] : y2;
            const Vector w = right - left, h = bottom - top;
            const Vector overlap = (w > zero ? w : zero) * (h > zero ? h : zero);
            marked |= overlap / (boxes.area[i] + area - overlap) > threshold;
        }
        store_vector(marks + j, marked);
    }
}

constexpr DetectionKernel kernel = {
    suppress<Float32, std::int32_t>,
    suppress<Float64, std::int64_t>,
    {{pool_channels_first<Float32>, pool_channels_last<Float32>},
     {pool_channels_first<Float16>, pool_channels_last<Float16>},
     {pool_channels_first<OneNaN>, pool_channels_last<OneNaN>}},
    {pool_channels_first<Float64>, pool_channels_last<Float64>},
    {{spread_channels_first<Float32>, spread_channels_last<Float32>},
     {spread_channels_first<Float16>, spread_channels_last<Float16>},
     {spread_channels_first<OneNaN>, spread_channels_last<OneNaN>}},
    {spread_channels_first<Float64>, spread_channels_last<Float64>},
    {narrow_all<Float32>, narrow_all<Float16>, narrow_all<OneNaN>},
};

}  // namespace detection
}  // namespace
}  // namespace hpcai500
