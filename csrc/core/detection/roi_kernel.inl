// The inner loops of RoIAlign.

// A few vectors of channels of one bin: the sum over its pixels.
template <class Type, int vectors>
inline void pool_channels(const PoolCall<typename Type::Real>& call, int row_bin, int column_bin,
                          const typename Type::Element* channels, typename Type::Real* sums) {
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    typename Type::Vector sum[vectors] = {};
    for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
        const typename Type::Element* row = channels + rows.index[r] * call.width * call.channels;
        for (int c = columns.begin[column_bin]; c < columns.begin[column_bin + 1]; ++c) {
            const typename Type::Real weight = rows.weight[r] * columns.weight[c];
            const typename Type::Element* pixel = row + columns.index[c] * call.channels;
            for (int v = 0; v < vectors; ++v) sum[v] += weight * Type::load(pixel + v * lanes<Type>);
        }
    }
    for (int v = 0; v < vectors; ++v) store_vector(sums + v * lanes<Type>, sum[v]);
}

// Fewer channels than a vector has.
template <class Type>
inline void pool_last_channels(const PoolCall<typename Type::Real>& call, int row_bin, int column_bin,
                               const typename Type::Element* channels, int count, typename Type::Real* sums) {
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    typename Type::Vector sum{};
    for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
        const typename Type::Element* row = channels + rows.index[r] * call.width * call.channels;
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
    using Element = typename Type::Element;
    const int bins = call.taps.column_bins;
    const auto* sums = reinterpret_cast<const Element*>(call.workspace);
    if constexpr (sizeof(Element) != sizeof(typename Type::Real)) {
        narrow_all<Type>(call.workspace, call.narrow_workspace,
                         static_cast<std::int64_t>(bins) * channel_block);
        sums = static_cast<const Element*>(call.narrow_workspace);
    }
    const std::int64_t plane = static_cast<std::int64_t>(call.taps.row_bins) * bins;
    Element* out = static_cast<Element*>(call.pooled) + first_channel * plane + row_bin * bins;
    for (int channel = 0; channel < count; ++channel)
        for (int bin = 0; bin < bins; ++bin) out[channel * plane + bin] = sums[bin * channel_block + channel];
}

template <class Type>
void pool_channels_last(const PoolCall<typename Type::Real>& call) {
    constexpr int vectors =
        vectors_in_pass < channel_block / lanes<Type> ? vectors_in_pass : channel_block / lanes<Type>;
    const auto* image = static_cast<const typename Type::Element*>(call.image);
    for (std::int64_t first = 0; first < call.channels; first += channel_block) {
        const std::int64_t left = call.channels - first;
        const int count = left < channel_block ? static_cast<int>(left) : channel_block;
        for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin) {
            for (int bin = 0; bin < call.taps.column_bins; ++bin) {
                typename Type::Real* sums = call.workspace + bin * channel_block;
                int done = 0;
                for (; done + vectors * lanes<Type> <= count; done += vectors * lanes<Type>)
                    pool_channels<Type, vectors>(call, row_bin, bin, image + first + done, sums + done);
                for (; done + lanes<Type> <= count; done += lanes<Type>)
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
inline void add_row(const typename Type::Element* row, std::int64_t readable, typename Type::Real weight,
                    std::int64_t count, bool first, typename Type::Real* sum) {
    using Vector = typename Type::Vector;
    for (std::int64_t i = 0; i < count; i += lanes<Type>) {
        const Vector values = i + lanes<Type> <= readable
                                  ? Type::load(row + i)
                                  : load_some<Type>(row + i, static_cast<int>(readable - i));
        const Vector before = first ? Vector{} : load_vector<Vector>(sum + i);
        store_vector(sum + i, before + weight * values);
    }
}

// Vertically first: whole stretches of a row fill vectors, where single pixels of a plane would not.
template <class Type>
void pool_channels_first(const PoolCall<typename Type::Real>& call) {
    using Element = typename Type::Element;
    using Real = typename Type::Real;
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    const int span_begin = call.taps.column_begin, span = call.taps.column_end - span_begin;
    const std::int64_t plane = call.height * call.width;
    auto* out = static_cast<Element*>(call.pooled);
    for (std::int64_t channel = 0; channel < call.channels; ++channel) {
        const Element* pixels = static_cast<const Element*>(call.image) + channel * plane;
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
                if constexpr (sizeof(Element) == sizeof(Real))
                    *out++ = sum;
                else
                    narrow_all<Type>(&sum, out++, 1);
            }
        }
    }
}

template <class Type>
void spread_channels_last(const SpreadCall<typename Type::Real>& call) {
    using Real = typename Type::Real;
    using Vector = typename Type::Vector;
    constexpr int vectors = channel_block / lanes<Type>;
    const auto& rows = call.taps.rows;
    const auto& columns = call.taps.columns;
    const int bins = call.taps.column_bins;
    const std::int64_t plane = static_cast<std::int64_t>(call.taps.row_bins) * bins;
    const auto* gradient = static_cast<const typename Type::Element*>(call.gradient);
    const int used = (call.channels + lanes<Type> - 1) / lanes<Type>;
    for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin) {
        bool touched = false;
        for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r)
            touched |= rows.index[r] >= call.row_begin && rows.index[r] < call.row_end;
        if (!touched) continue;
        for (int bin = 0; bin < bins; ++bin) {
            typename Type::Element values[channel_block] = {};
            for (int channel = 0; channel < call.channels; ++channel)
                values[channel] = gradient[channel * plane + row_bin * bins + bin];
            Vector value[vectors];
            for (int v = 0; v < vectors; ++v) value[v] = Type::load(values + v * lanes<Type>);
            for (int r = rows.begin[row_bin]; r < rows.begin[row_bin + 1]; ++r) {
                if (rows.index[r] < call.row_begin || rows.index[r] >= call.row_end) continue;
                Real* row = call.tile + (rows.index[r] - call.row_begin) * call.width * channel_block;
                for (int c = columns.begin[bin]; c < columns.begin[bin + 1]; ++c) {
                    const Real weight = rows.weight[r] * columns.weight[c];
                    Real* pixel = row + static_cast<std::int64_t>(columns.index[c]) * channel_block;
                    for (int v = 0; v < used; ++v) {
                        Real* place = pixel + v * lanes<Type>;
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
    const auto* gradient = static_cast<const typename Type::Element*>(call.gradient);
    for (int channel = 0; channel < call.channels; ++channel) {
        Real* plane = call.tile + channel * (call.row_end - call.row_begin) * call.width;
        for (int row_bin = 0; row_bin < call.taps.row_bins; ++row_bin, gradient += bins) {
            Real* sums = call.workspace;
            for (int column = 0; column < span; ++column) sums[column] = 0;
            for (int bin = 0; bin < bins; ++bin) {
                Real value;
                widen_all<Type>(gradient + bin, &value, 1);
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
