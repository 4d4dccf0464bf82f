// Factors of the inverse discrete cosine transform of Loeffler, Ligtenberg and Moschytz (ICASSP 1989), in the
// integer arithmetic that libjpeg calls "islow": 13 bits behind the point, 2 more than needed kept between
// the two passes. The samples have libjpeg's bits, which a test says, for coefficients of up to 8191 times
// their factor: eight times what an image can have. Beyond, libjpeg-turbo's results differ from one processor
// to the next; ours are cut to their range.
//
// Products are summed in pairs, as vector units do: of values a and b, a * first + b * second. So each
// rotation of the paper's Figure 1 is written out as its two sums; as integers they are the same.
#pragma once

#include <cstdint>

namespace hpcai500::baseline {

inline constexpr int fraction_bits = 13;
/// Bits that are kept between the passes.
inline constexpr int kept_bits = 2;
inline constexpr int first_shift = fraction_bits - kept_bits;
/// The second pass also divides by 8, the transform's scale.
inline constexpr int second_shift = fraction_bits + kept_bits + 3;

struct Pair {
    std::int16_t first, second;
};

constexpr std::int16_t fixed(double factor) {
    const double scaled = factor * (1 << fraction_bits);
    return static_cast<std::int16_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

inline constexpr std::int16_t f0_298 = fixed(0.298631336), f0_390 = fixed(0.390180644),
                              f0_541 = fixed(0.541196100), f0_765 = fixed(0.765366865),
                              f0_899 = fixed(0.899976223), f1_175 = fixed(1.175875602),
                              f1_501 = fixed(1.501321110), f1_847 = fixed(1.847759065),
                              f1_961 = fixed(1.961570560), f2_053 = fixed(2.053119869),
                              f2_562 = fixed(2.562915447), f3_072 = fixed(3.072711026);

constexpr Pair pair(int first, int second) {
    return {static_cast<std::int16_t>(first), static_cast<std::int16_t>(second)};
}

/// Of coefficients 2 and 6.
inline constexpr Pair even_outer = pair(f0_541 + f0_765, f0_541), even_inner = pair(f0_541, f0_541 - f1_847);
/// Of the sums 3 + 7 and 1 + 5.
inline constexpr Pair odd_outer = pair(f1_175 - f1_961, f1_175), odd_inner = pair(f1_175, f1_175 - f0_390);
/// Of coefficients 7 and 1, and of 5 and 3.
inline constexpr Pair odd_7_1_for_7 = pair(f0_298 - f0_899, -f0_899),
                      odd_7_1_for_1 = pair(-f0_899, f1_501 - f0_899);
inline constexpr Pair odd_5_3_for_5 = pair(f2_053 - f2_562, -f2_562),
                      odd_5_3_for_3 = pair(-f2_562, f3_072 - f2_562);

}  // namespace hpcai500::baseline
