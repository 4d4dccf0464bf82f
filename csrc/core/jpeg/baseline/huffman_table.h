// Lookup tables of one Huffman code (ITU-T T.81, annexes C and F). Reading codes is one lookup after the
// other, each of which waits for the bits that the one before has used: so a lookup takes as many codes as it
// can, and what is looked at often stays in the first cache.
#pragma once

#include <cstdint>
#include <cstring>

namespace hpcai500::baseline {

/// Bits that one lookup of values sees. With 11 more codes fit, and what that gains the cache loses.
inline constexpr int decode_bits = 10;
/// Bits that one lookup of `skip` sees: three short codes with their values, on average.
inline constexpr int skip_bits = 12;

/// What `run` says of the symbol that ends a block: beyond any place in a block, however it is added up.
inline constexpr int end_of_block = 128;
/// Most zeros before a coefficient that one symbol can say.
inline constexpr int longest_run = 15;
/// Up to this place in a block, the next coefficient cannot be the block's last: what follows it is of this
/// block, too.
inline constexpr int last_place_of_pairs = 63 - (longest_run + 1);

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

/// Finds the symbols of codes that are too long for a lookup.
struct LongCodes {
    /// Codes of `length` bits, moved up to 16 bits, are below codes_below[length] (MAXCODE of T.81, and 1
    /// more).
    std::uint32_t codes_below[17];
    /// What is to be added to a code of `length` bits to give the place of its symbol (VALPTR - MINCODE).
    int place_of_symbol[17];
    std::uint8_t symbols[most_symbols];
};

/// The tables of a code of DC differences. As the other, plain numbers: the translation units that read them
/// are compiled for newer processors.
struct DifferenceTable {
    /// Bits of a code, and of the value behind it; and both together, which are 0 where the code is too long.
    struct Entry {
        std::uint8_t used, code_bits, value_bits;
    };
    /// For the next `decode_bits` bits, the value not among them.
    Entry entries[1 << decode_bits];
    LongCodes long_codes;
};

/// What the next bits say of one coefficient or two. Places count from that of the next one; of one that is
/// not there it is end_of_block, where what is written is never read.
struct CoefficientPair {
    std::uint8_t used;    ///< bits; 0 where not even one code and its value fit
    std::uint8_t behind;  ///< place behind both; end_of_block and 1 more where the block ends
    std::uint8_t first_place, second_place;
    std::int16_t first, second;
};

/// The tables of a code of AC coefficients.
struct CoefficientTable {
    /// For the next `decode_bits` bits: bits used (0-5), run of zeros before the value or end_of_block
    /// (8-15), value (16-31). Where code and value together are longer, bits used are 0: then bits of the
    /// code (8-15) and symbol (16-31), or 0 altogether where the code alone is longer.
    std::uint32_t single[1 << decode_bits];
    /// For as many bits, one code or two.
    CoefficientPair pairs[1 << decode_bits];
    /// For the next `skip_bits` bits, which may hold several codes with their values: bits used (0-5),
    /// whether the last ends the block (6), coefficients passed (7-15). Bits used are 0 where not even one
    /// fits.
    std::uint16_t skip[1 << skip_bits];
    LongCodes long_codes;
};

/// Builds the tables. False for a code that breaks the format's rules, or, of DC differences, has values that
/// no 8-bit image has; the table is then undefined.
bool build(DifferenceTable& table, const HuffmanCode& code);
bool build(CoefficientTable& table, const HuffmanCode& code);

/// Tables of the codes that were seen last: most encoders give all their files the same ones. Table is
/// DifferenceTable or CoefficientTable.
template <class Table>
class TableCache {
  public:
    /// The tables of `code`, valid until as many other codes were asked for as an image can have components;
    /// null where build() refuses it.
    const Table* find(const HuffmanCode& code) {
        Entry* longest_unused = entries_;
        for (Entry& entry : entries_) {
            if (entry.valid && std::memcmp(&entry.code, &code, sizeof code) == 0) {
                entry.last_use = ++uses_;
                return &entry.table;
            }
            if (entry.last_use < longest_unused->last_use) longest_unused = &entry;
        }
        Entry& entry = *longest_unused;
        entry.valid = build(entry.table, code);
        if (!entry.valid) return nullptr;
        entry.code = code;
        entry.last_use = ++uses_;
        return &entry.table;
    }

  private:
    // One more than an image has components: the one that was not used for longest is not the image's.
    static constexpr int places = 4;
    struct Entry {
        HuffmanCode code;
        Table table;
        std::uint64_t last_use = 0;
        bool valid = false;
    };
    Entry entries_[places];
    std::uint64_t uses_ = 0;
};

}  // namespace hpcai500::baseline
