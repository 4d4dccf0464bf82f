// The inverse cosine transform of inverse_dct.h for any processor, one line after the other: without an
// instruction that sums products in pairs, vectors would not be faster.

// 16-bit sums and products wrap, and results are cut to their range, as vector units do it: the samples of
// damaged blocks are the same on every processor.
inline int wrap(int value) {
    return static_cast<std::int16_t>(value);
}

inline int multiply(int first, int second, Pair factors) {
    return first * factors.first + second * factors.second;
}

template <int shift>
inline int narrow(std::uint32_t value) {
    const int shifted = static_cast<std::int32_t>(value) >> shift;
    return shifted < -32768 ? -32768 : shifted > 32767 ? 32767 : shifted;
}

// One dimension: `line` holds eight coefficients, `step` apart, and then as many samples.
template <int shift>
inline void transform(int* line, int step) {
    const auto at = [line, step](int place) -> int& { return line[place * step]; };
    constexpr std::uint32_t half = 1U << (shift - 1);
    const auto widen = [](int value) {
        return (static_cast<std::uint32_t>(wrap(value)) << fraction_bits) + half;
    };
    const std::uint32_t sum = widen(at(0) + at(4)), difference = widen(at(0) - at(4));
    const auto outer = static_cast<std::uint32_t>(multiply(at(2), at(6), even_outer));
    const auto inner = static_cast<std::uint32_t>(multiply(at(2), at(6), even_inner));
    const std::uint32_t even[4] = {sum + outer, difference + inner, difference - inner, sum - outer};

    const int three_seven = wrap(at(3) + at(7)), one_five = wrap(at(1) + at(5));
    const auto shared_outer = static_cast<std::uint32_t>(multiply(three_seven, one_five, odd_outer));
    const auto shared_inner = static_cast<std::uint32_t>(multiply(three_seven, one_five, odd_inner));
    const std::uint32_t odd[4] = {
        static_cast<std::uint32_t>(multiply(at(7), at(1), odd_7_1_for_1)) + shared_inner,
        static_cast<std::uint32_t>(multiply(at(5), at(3), odd_5_3_for_3)) + shared_outer,
        static_cast<std::uint32_t>(multiply(at(5), at(3), odd_5_3_for_5)) + shared_inner,
        static_cast<std::uint32_t>(multiply(at(7), at(1), odd_7_1_for_7)) + shared_outer};
    for (int i = 0; i < 4; ++i) {
        at(i) = narrow<shift>(even[i] + odd[i]);
        at(7 - i) = narrow<shift>(even[i] - odd[i]);
    }
}

inline void inverse_dct(const std::int16_t* block, const std::int16_t* factors, std::uint8_t* samples,
                        std::ptrdiff_t stride) {
    int values[64];
    for (int i = 0; i < 64; ++i) values[i] = wrap(block[i] * factors[i]);
    for (int column = 0; column < 8; ++column) transform<first_shift>(values + column, 8);
    for (int row = 0; row < 8; ++row) {
        int* line = values + row * 8;
        transform<second_shift>(line, 1);
        for (int column = 0; column < 8; ++column) {
            const int level = line[column] + 128;
            samples[row * stride + column] = static_cast<std::uint8_t>(level < 0     ? 0
                                                                       : level > 255 ? 255
                                                                                     : level);
        }
    }
}
