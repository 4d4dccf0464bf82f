// Eight 16-bit numbers (words.h) with AVX2, and with AVX-512: their 32-bit sums are one register of 32 bytes.
#pragma once

#include "words.h"

namespace hpcai500 {
namespace {

struct Words16 {
    __m256i both;
};

HPCAI500_INLINE __m128i low(__m256i both) {
    return _mm256_castsi256_si128(both);
}
HPCAI500_INLINE __m128i high(__m256i both) {
    return _mm256_extracti128_si256(both, 1);
}
HPCAI500_INLINE __m256i m256(const Sums8& sums) {
    return as<__m256i>(sums.part[0]);
}

template <class Pair>
HPCAI500_INLINE Sums8 multiply(Words8 a, Words8 b, Pair factors) {
    const __m256i pairs = _mm256_set_m128i(_mm_unpackhi_epi16(as<__m128i>(a), as<__m128i>(b)),
                                           _mm_unpacklo_epi16(as<__m128i>(a), as<__m128i>(b)));
    const int both =
        static_cast<int>(static_cast<std::uint16_t>(factors.first) |
                         static_cast<unsigned>(static_cast<std::uint16_t>(factors.second)) << 16);
    return {{as<SumBits>(_mm256_madd_epi16(pairs, _mm256_set1_epi32(both)))}};
}
HPCAI500_INLINE Sums8 widen(Words8 values) {
    return {{as<SumBits>(_mm256_cvtepi16_epi32(as<__m128i>(values)))}};
}
template <int shift>
HPCAI500_INLINE Words16 narrow(const Sums8& one, const Sums8& other) {
    const __m256i quarters =
        _mm256_packs_epi32(_mm256_srai_epi32(m256(one), shift), _mm256_srai_epi32(m256(other), shift));
    return {_mm256_permute4x64_epi64(quarters, 0xd8)};
}

HPCAI500_INLINE void transpose(const Words16* in, Words8* out) {
    __m128i row[8], two[8], four[8];
    for (int i = 0; i < 4; ++i) {
        row[i] = low(in[i].both);
        row[7 - i] = high(in[i].both);
    }
    for (int i = 0; i < 4; ++i) {
        two[2 * i] = _mm_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
        two[2 * i + 1] = _mm_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        for (int part = 0; part < 2; ++part) {
            four[4 * i + 2 * part] = _mm_unpacklo_epi32(two[4 * i + part], two[4 * i + 2 + part]);
            four[4 * i + 2 * part + 1] = _mm_unpackhi_epi32(two[4 * i + part], two[4 * i + 2 + part]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = as<Words8>(_mm_unpacklo_epi64(four[i], four[i + 4]));
        out[2 * i + 1] = as<Words8>(_mm_unpackhi_epi64(four[i], four[i + 4]));
    }
}

HPCAI500_INLINE void store_samples(const Words16* columns, std::uint8_t* samples, std::ptrdiff_t stride) {
    // 16-bit columns 0 7, 1 6, 2 5, 3 4 to 8-bit ones: 0 1 and 7 6, 2 3 and 5 4.
    const __m256i middle = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i first = _mm256_xor_si256(_mm256_packs_epi16(columns[0].both, columns[1].both), middle);
    const __m256i second = _mm256_xor_si256(_mm256_packs_epi16(columns[2].both, columns[3].both), middle);
    const __m128i c01 = low(first), c76 = high(first), c23 = low(second), c54 = high(second);
    const __m128i c0_1 = _mm_unpacklo_epi8(c01, _mm_srli_si128(c01, 8));
    const __m128i c2_3 = _mm_unpacklo_epi8(c23, _mm_srli_si128(c23, 8));
    const __m128i c4_5 = _mm_unpacklo_epi8(_mm_srli_si128(c54, 8), c54);
    const __m128i c6_7 = _mm_unpacklo_epi8(_mm_srli_si128(c76, 8), c76);
    const __m128i left_upper = _mm_unpacklo_epi16(c0_1, c2_3), left_lower = _mm_unpackhi_epi16(c0_1, c2_3);
    const __m128i right_upper = _mm_unpacklo_epi16(c4_5, c6_7), right_lower = _mm_unpackhi_epi16(c4_5, c6_7);
    const __m128i rows[4] = {
        _mm_unpacklo_epi32(left_upper, right_upper), _mm_unpackhi_epi32(left_upper, right_upper),
        _mm_unpacklo_epi32(left_lower, right_lower), _mm_unpackhi_epi32(left_lower, right_lower)};
    for (int i = 0; i < 4; ++i, samples += 2 * stride) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(samples), rows[i]);
        _mm_storeh_pd(reinterpret_cast<double*>(samples + stride), _mm_castsi128_pd(rows[i]));
    }
}

}  // namespace
}  // namespace hpcai500
