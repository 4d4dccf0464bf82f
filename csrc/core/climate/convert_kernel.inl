// The climate reader's conversion (convert_kernel.h), over the vectors of one instruction set.

namespace hpcai500 {
namespace {
namespace convert {

struct Values {
    const unsigned char* first;
    HPCAI500_INLINE Vec16 load(long at) const {
        return hpcai500::load(reinterpret_cast<const float*>(first + 4 * at));
    }
    // A copy of values [at, at + count) with room for a whole step behind them.
    Values padded(long at, long count, unsigned char* scratch) const {
        std::memcpy(scratch, first + 4 * at, static_cast<unsigned long>(4 * count));
        return {scratch};
    }
};

struct Planes {
    const unsigned char* first;
    long stride;
    HPCAI500_INLINE Vec16 load(long at) const { return load_planes(first + at, stride); }
    Planes padded(long at, long count, unsigned char* scratch) const {
        for (long plane = 0; plane < 4; ++plane)
            std::memcpy(scratch + plane * step, first + plane * stride + at,
                        static_cast<unsigned long>(count));
        return {scratch, step};
    }
};

template <class Form, bool normalise>
struct Source {
    Form form;
    float scale, bias;
    HPCAI500_INLINE Vec32 load(long at) const {
        const Vec16 low = form.load(at), high = form.load(at + 16);
        if (!normalise) return {{low, high}};
        return {{fused_multiply_add(low, scale, bias), fused_multiply_add(high, scale, bias)}};
    }
    Vec32 load_some(long at, long count) const {
        alignas(64) unsigned char scratch[4 * step] = {};
        return Source{form.padded(at, count, scratch), scale, bias}.load(0);
    }
};

template <class To, bool normalise, class Form>
void convert(const Form& form, const ConvertRun& run) {
    Source<Form, normalise> source{form, run.scale, run.bias};
    write_run<To>(source, run.out, run.count, run.stream);
}
template <class To, bool normalise>
void convert_values(const ConvertRun& run) {
    convert<To, normalise>(Values{run.source}, run);
}
template <class To, bool normalise>
void convert_planes(const ConvertRun& run) {
    convert<To, normalise>(Planes{run.source, run.plane_stride}, run);
}

// In the order of the enums Target and SourceForm.
constexpr ConvertKernel kernel = {{{convert_values<Float32, false>, convert_planes<Float32, false>},
                                   {convert_values<Float32, true>, convert_planes<Float32, true>},
                                   {convert_values<Float16, true>, convert_planes<Float16, true>},
                                   {convert_values<BFloat16, true>, convert_planes<BFloat16, true>}},
                                  fence};

}  // namespace convert
}  // namespace
}  // namespace hpcai500
