// Vectors of eight 16-bit numbers, for the inverse cosine transform (jpeg/baseline/inverse_dct.inl): sums
// wrap, and products are summed in 32 bits. words_avx2.h and words_neon.h include this file and add:
//
//     multiply(a, b, factors)             a * factors.first + b * factors.second
//     widen(values)                       to 32 bits
//     narrow<shift>(one, other)           shifted right and cut to 16 bits
//     transpose(pairs, rows)              rows 0 and 7, 1 and 6, 2 and 5, 3 and 4 to columns 0 to 7
//     store_samples(pairs, to, stride)    such columns as rows of bytes, 128 more and cut to 0 to 255
//
// In unnamed namespaces, as native.h says.
#define HPCAI500_WORDS

#include <cstddef>

namespace hpcai500 {
namespace {

// One register of AVX2 and AVX-512, two of NEON.
constexpr int sum_bytes = smaller(vector_bytes, 32);
typedef std::uint16_t Words8 __attribute__((vector_size(16)));
typedef std::uint32_t SumBits __attribute__((vector_size(sum_bytes)));

struct Sums8 {
    SumBits part[32 / sum_bytes];
};

HPCAI500_INLINE Sums8 operator+(Sums8 a, const Sums8& b) {
    for (int i = 0; i < 32 / sum_bytes; ++i) a.part[i] += b.part[i];
    return a;
}
HPCAI500_INLINE Sums8 operator-(Sums8 a, const Sums8& b) {
    for (int i = 0; i < 32 / sum_bytes; ++i) a.part[i] -= b.part[i];
    return a;
}
/// (values << bits) + summand.
HPCAI500_INLINE Sums8 shift_add(Sums8 values, int bits, std::uint32_t summand) {
    for (SumBits& part : values.part) part = (part << bits) + summand;
    return values;
}

}  // namespace
}  // namespace hpcai500
