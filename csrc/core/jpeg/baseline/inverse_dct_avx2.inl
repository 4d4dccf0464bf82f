// The inverse transform with AVX2: eight 16-bit values in half a register, their pairs in a whole one.

inline __m256i pairs(__m128i first, __m128i second) {
    return _mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second));
}

inline __m256i multiply(__m256i values, Pair factors) {
    const int both =
        static_cast<int>(static_cast<std::uint16_t>(factors.first) |
                         static_cast<unsigned>(static_cast<std::uint16_t>(factors.second)) << 16);
    return _mm256_madd_epi16(values, _mm256_set1_epi32(both));
}

inline __m256i widen(__m128i values) {
    return _mm256_slli_epi32(_mm256_cvtepi16_epi32(values), fraction_bits);
}

// Two results of 8 values each, rounded, one behind the other.
template <int shift>
inline __m256i narrow(__m256i one, __m256i other) {
    const __m256i packed = _mm256_packs_epi32(_mm256_srai_epi32(one, shift), _mm256_srai_epi32(other, shift));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

// One dimension of all eight columns: line[i] holds coefficient i of each column, and then sample i. Four
// registers come out: samples 0 and 7, 1 and 6, 2 and 5, 3 and 4.
template <int shift>
inline void transform_columns(const __m128i* line, __m256i* out) {
    const __m256i two_six = pairs(line[2], line[6]);
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m256i sum = _mm256_add_epi32(widen(_mm_add_epi16(line[0], line[4])), half);
    const __m256i difference = _mm256_add_epi32(widen(_mm_sub_epi16(line[0], line[4])), half);
    const __m256i outer = multiply(two_six, even_outer), inner = multiply(two_six, even_inner);
    const __m256i even[4] = {_mm256_add_epi32(sum, outer), _mm256_add_epi32(difference, inner),
                             _mm256_sub_epi32(difference, inner), _mm256_sub_epi32(sum, outer)};

    const __m256i sums = pairs(_mm_add_epi16(line[3], line[7]), _mm_add_epi16(line[1], line[5]));
    const __m256i shared_outer = multiply(sums, odd_outer), shared_inner = multiply(sums, odd_inner);
    const __m256i seven_one = pairs(line[7], line[1]), five_three = pairs(line[5], line[3]);
    const __m256i odd[4] = {_mm256_add_epi32(multiply(seven_one, odd_7_1_for_1), shared_inner),
                            _mm256_add_epi32(multiply(five_three, odd_5_3_for_3), shared_outer),
                            _mm256_add_epi32(multiply(five_three, odd_5_3_for_5), shared_inner),
                            _mm256_add_epi32(multiply(seven_one, odd_7_1_for_7), shared_outer)};
    for (int i = 0; i < 4; ++i)
        out[i] = narrow<shift>(_mm256_add_epi32(even[i], odd[i]), _mm256_sub_epi32(even[i], odd[i]));
}

inline __m128i low(__m256i both) {
    return _mm256_castsi256_si128(both);
}
inline __m128i high(__m256i both) {
    return _mm256_extracti128_si256(both, 1);
}

// The rows of samples become columns, which the second pass takes.
inline void transpose_words(const __m256i* in, __m128i* out) {
    const __m128i row[8] = {low(in[0]),  low(in[1]),  low(in[2]),  low(in[3]),
                            high(in[3]), high(in[2]), high(in[1]), high(in[0])};
    __m128i two[8], four[8];
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
        out[2 * i] = _mm_unpacklo_epi64(four[i], four[i + 4]);
        out[2 * i + 1] = _mm_unpackhi_epi64(four[i], four[i + 4]);
    }
}

// Columns of samples around 0, as transform_columns() gives them, to rows of levels.
inline void store_samples(const __m256i* columns, std::uint8_t* samples, std::ptrdiff_t stride) {
    // 16-bit columns 0 7, 1 6, 2 5, 3 4 to 8-bit ones: 0 1 and 7 6, 2 3 and 5 4.
    const __m256i middle = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i first = _mm256_xor_si256(_mm256_packs_epi16(columns[0], columns[1]), middle);
    const __m256i second = _mm256_xor_si256(_mm256_packs_epi16(columns[2], columns[3]), middle);
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

inline void inverse_dct(const std::int16_t* block, const std::int16_t* factors, std::uint8_t* samples,
                        std::ptrdiff_t stride) {
    __m128i line[8];
    for (int i = 0; i < 8; ++i)
        line[i] = _mm_mullo_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(block + 8 * i)),
                                  _mm_load_si128(reinterpret_cast<const __m128i*>(factors + 8 * i)));
    __m256i columns[4];
    transform_columns<first_shift>(line, columns);
    transpose_words(columns, line);
    transform_columns<second_shift>(line, columns);
    store_samples(columns, samples, stride);
}
