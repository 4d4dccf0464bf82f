// The inverse cosine transform of inverse_dct.h, over vectors of eight 16-bit numbers (core/vectors/words.h).

// One dimension of all eight columns: line[i] holds coefficient i of each column, and then sample i. Four
// pairs come out: samples 0 and 7, 1 and 6, 2 and 5, 3 and 4.
template <int shift>
HPCAI500_INLINE void transform_columns(const Words8* line, Words16* out) {
    constexpr std::uint32_t half = 1U << (shift - 1);
    const Sums8 sum = shift_add(widen(line[0] + line[4]), fraction_bits, half);
    const Sums8 difference = shift_add(widen(line[0] - line[4]), fraction_bits, half);
    const Sums8 outer = multiply(line[2], line[6], even_outer),
                inner = multiply(line[2], line[6], even_inner);
    const Sums8 even[4] = {sum + outer, difference + inner, difference - inner, sum - outer};

    const Words8 three_seven = line[3] + line[7], one_five = line[1] + line[5];
    const Sums8 shared_outer = multiply(three_seven, one_five, odd_outer);
    const Sums8 shared_inner = multiply(three_seven, one_five, odd_inner);
    const Sums8 odd[4] = {multiply(line[7], line[1], odd_7_1_for_1) + shared_inner,
                          multiply(line[5], line[3], odd_5_3_for_3) + shared_outer,
                          multiply(line[5], line[3], odd_5_3_for_5) + shared_inner,
                          multiply(line[7], line[1], odd_7_1_for_7) + shared_outer};
    for (int i = 0; i < 4; ++i) out[i] = narrow<shift>(even[i] + odd[i], even[i] - odd[i]);
}

// 16-bit sums and products wrap, and results are cut to their range: the samples of damaged blocks are the
// same on every processor. Blocks and factors are aligned to 16 bytes.
HPCAI500_INLINE void inverse_dct(const std::int16_t* block, const std::int16_t* factors,
                                 std::uint8_t* samples, std::ptrdiff_t stride) {
    Words8 line[8];
    for (int i = 0; i < 8; ++i)
        line[i] = load_vector<Words8>(block + 8 * i) * load_vector<Words8>(factors + 8 * i);
    Words16 columns[4];
    transform_columns<first_shift>(line, columns);
    transpose(columns, line);
    transform_columns<second_shift>(line, columns);
    store_samples(columns, samples, stride);
}
