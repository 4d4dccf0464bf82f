// The conversion kernel. A translation unit defines Vec16 (16 floats) and its operations for one instruction
// set, in its own unnamed namespace, and then includes this file: names with external linkage would clash
// between the kernels, and the linker could hand AVX-512 code to a processor without it.
//
// The unit of work is one cache line of output: 16 float32, or 32 values of a short type.

inline constexpr long line_bytes = 64;
inline constexpr long most_line_values = 32;

struct Values {
    const unsigned char* first;
    Vec16 load(long at) const { return load_values(first + 4 * at); }
    // A copy of values [at, at + count) with room for a whole line behind them.
    Values padded(long at, long count, unsigned char* scratch) const {
        std::memcpy(scratch, first + 4 * at, static_cast<unsigned long>(4 * count));
        return {scratch};
    }
};

struct Planes {
    const unsigned char* first;
    long stride;
    Vec16 load(long at) const { return load_planes(first + at, stride); }
    Planes padded(long at, long count, unsigned char* scratch) const {
        for (long plane = 0; plane < 4; ++plane)
            std::memcpy(scratch + plane * most_line_values, first + plane * stride + at,
                        static_cast<unsigned long>(count));
        return {scratch, most_line_values};
    }
};

struct StoreFloat32 {
    static constexpr long size = 4;
    static void line(unsigned char* out, const Vec16* values, bool stream) {
        store_float32(out, values[0], stream);
    }
};
struct StoreFloat16 {
    static constexpr long size = 2;
    static void line(unsigned char* out, const Vec16* values, bool stream) {
        store_float16(out, values[0], values[1], stream);
    }
};
struct StoreBfloat16 {
    static constexpr long size = 2;
    static void line(unsigned char* out, const Vec16* values, bool stream) {
        store_bfloat16(out, values[0], values[1], stream);
    }
};

template <class Store, bool normalise, class Source>
inline void convert_line(const Source& source, long at, const ConvertRun& run, unsigned char* out,
                         bool stream) {
    constexpr long vectors = line_bytes / Store::size / 16;
    Vec16 values[vectors];
    for (long v = 0; v < vectors; ++v) {
        values[v] = source.load(at + 16 * v);
        if (normalise) values[v] = scale_and_shift(values[v], run.scale, run.bias);
    }
    Store::line(out, values, stream);
}

// Less than a line, from padded copies: no byte outside the run is touched.
template <class Store, bool normalise, class Source>
inline void convert_part(const Source& source, long at, long count, const ConvertRun& run) {
    if (count == 0) return;
    alignas(64) unsigned char scratch[4 * most_line_values] = {};
    alignas(64) unsigned char line[line_bytes];
    convert_line<Store, normalise>(source.padded(at, count, scratch), 0, run, line, false);
    std::memcpy(run.out + at * Store::size, line, static_cast<unsigned long>(count * Store::size));
}

template <class Store, bool normalise, bool stream, class Source>
inline long convert_lines(const Source& source, long at, const ConvertRun& run) {
    constexpr long values = line_bytes / Store::size;
    for (; at + values <= run.count; at += values)
        convert_line<Store, normalise>(source, at, run, run.out + at * Store::size, stream);
    return at;
}

template <class Store, bool normalise, class Source>
inline void convert_run(const Source& source, const ConvertRun& run) {
    constexpr long values = line_bytes / Store::size;
    const long misaligned = static_cast<long>(reinterpret_cast<unsigned long>(run.out) % line_bytes);
    long at = 0;
    // Lines that start on a multiple of their size can bypass the cache; an odd address never gets there.
    if (run.stream && misaligned % Store::size == 0) {
        const long head = misaligned == 0 ? 0 : (line_bytes - misaligned) / Store::size;
        at = head < run.count ? head : run.count;
        convert_part<Store, normalise>(source, 0, at, run);
        at = convert_lines<Store, normalise, true>(source, at, run);
    } else {
        at = convert_lines<Store, normalise, false>(source, at, run);
    }
    static_assert(values <= most_line_values);
    convert_part<Store, normalise>(source, at, run.count - at, run);
}

template <class Store, bool normalise>
void convert_values(const ConvertRun& run) {
    convert_run<Store, normalise>(Values{run.source}, run);
}

template <class Store, bool normalise>
void convert_planes(const ConvertRun& run) {
    convert_run<Store, normalise>(Planes{run.source, run.plane_stride}, run);
}

// In the order of the enums Target and SourceForm.
#define HPCAI500_CONVERT_KERNEL                                                    \
    {{{convert_values<StoreFloat32, false>, convert_planes<StoreFloat32, false>},  \
      {convert_values<StoreFloat32, true>, convert_planes<StoreFloat32, true>},    \
      {convert_values<StoreFloat16, true>, convert_planes<StoreFloat16, true>},    \
      {convert_values<StoreBfloat16, true>, convert_planes<StoreBfloat16, true>}}, \
     fence}
