// Lookup tables of one Huffman code (ITU-T T.81, annexes C and F), for decoding values and for passing over
// them.
#pragma once

#include <cstdint>

namespace hpcai500::baseline {

/// Bits that one lookup of `decode` sees: two tables of 4 KB stay in the first cache beside two of `skip`.
inline constexpr int decode_bits = 10;
/// Bits that one lookup of `skip` sees: three short codes with their values, on average.
inline constexpr int skip_bits = 12;

/// What `run` says of the symbol that ends a block: beyond any place in a block, however it is added up.
inline constexpr int end_of_block = 128;

/// The lowest bits of each entry are bits used: processors shift by the lowest 6 bits of a register as it is.
inline constexpr int used_mask = 63;

inline constexpr int most_symbols = 256;
/// Longest difference of a DC coefficient, in bits, of 8-bit images.
inline constexpr int longest_difference = 11;

/// A code as a file gives it: how many codes have 1 to 16 bits, and the symbols in the order of their codes.
struct HuffmanCode {
    std::uint8_t counts[16];
    std::uint8_t symbols[most_symbols];
};

enum class Coefficients { dc, ac };

/// Plain numbers: the translation units that read them are compiled for newer processors.
struct HuffmanTable {
    /// For the next `decode_bits` bits: bits used (0-5), run of zeros before the value or end_of_block
    /// (8-15), value (16-31). Where code and value together are longer, bits used are 0: then bits of the
    /// code (8-15) and symbol (16-31), or 0 altogether where the code alone is longer.
    std::uint32_t decode[1 << decode_bits];
    /// For the next `skip_bits` bits, which may hold several codes with their values: bits used (0-5),
    /// whether the last ends the block (6), coefficients passed (7-15). Bits used are 0 where not even one
    /// fits.
    std::uint16_t skip[1 << skip_bits];
    /// Codes of `length` bits, moved up to 16 bits, are below codes_below[length].
    std::uint32_t codes_below[17];
    /// What is to be added to a code of `length` bits to give the place of its symbol.
    int place_of_symbol[17];
    std::uint8_t symbols[most_symbols];
};

/// Builds the tables. False for a code that breaks the format's rules, or, of DC differences, has values that
/// no 8-bit image has; the table is then undefined.
bool build(HuffmanTable& table, const HuffmanCode& code, Coefficients coefficients);

}  // namespace hpcai500::baseline
