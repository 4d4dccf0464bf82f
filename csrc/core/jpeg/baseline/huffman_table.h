// Lookup tables of one Huffman code (ITU-T T.81, annexes C and F). Reading codes is one lookup after the
// other, each of which waits for the bits that the one before has used: so a lookup takes two codes with
// their values where they fit, and what the next one waits for stands by itself in few bytes.
#pragma once

#include <cstdint>
#include <cstring>

namespace hpcai500::baseline {

/// Bits that one lookup sees.
inline constexpr int code_bits = 12;

/// The place of a coefficient that is not there: beyond any place in a block, however it is added up.
inline constexpr int nowhere = 128;
/// Most zeros before a coefficient that one symbol can say.
inline constexpr int longest_run = 15;
inline constexpr int block_size = 64;

inline constexpr int most_symbols = 256;
/// Longest difference of a DC coefficient, in bits, of 8-bit images.
inline constexpr int longest_difference = 11;

/// What CodeTable::used holds besides bits used: those are its lowest bits, as processors shift by the lowest
/// 6 bits of a register as it is.
inline constexpr int used_mask = 63;
inline constexpr int ends_block = 128;

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

/// What the next bits say of one coefficient or two. Places count from that of the next one.
struct CodePair {
    /// Coefficients of the block that both take, zeros included; block_size where code and value of the first
    /// do not fit into the lookup.
    std::uint8_t coefficients;
    std::uint8_t first_place, second_place;  ///< `nowhere` where there is none
    std::uint8_t first_used;  ///< bits of the first; of its code alone where the value does not fit; or 0
    std::int16_t first;       ///< value; the symbol where the value does not fit
    std::int16_t second;
};

/// The tables of a code of DC differences, whose place is 0, or of AC coefficients. Plain numbers: the
/// translation units that read them are compiled for newer processors.
struct CodeTable {
    /// For the next `code_bits` bits: bits used, and ends_block where the last code ends the block; 0 where
    /// not even one code and its value fit. Apart from `pairs`, so that these stay in the first cache.
    std::uint8_t used[1 << code_bits];
    CodePair pairs[1 << code_bits];
    /// Of coefficients, the same for as many codes as these bits hold, and how many coefficients they take;
    /// block_size where there is not even one.
    std::uint8_t skip_used[1 << code_bits];
    std::uint8_t skip_coefficients[1 << code_bits];
    LongCodes long_codes;
};

enum class CodeKind { differences, coefficients };

/// Builds the tables. False for a code that breaks the format's rules, or, of DC differences, has values that
/// no 8-bit image has; the table is then undefined.
bool build(CodeTable& table, const HuffmanCode& code, CodeKind kind);

/// Tables of the codes that were seen last: most encoders give all their files the same ones.
class TableCache {
  public:
    explicit TableCache(CodeKind kind) : kind_(kind) {}

    /// The tables of `code`, valid until as many other codes were asked for as an image can have components;
    /// null where build() refuses it.
    const CodeTable* find(const HuffmanCode& code) {
        Entry* longest_unused = entries_;
        for (Entry& entry : entries_) {
            if (entry.valid && std::memcmp(&entry.code, &code, sizeof code) == 0) {
                entry.last_use = ++uses_;
                return &entry.table;
            }
            if (entry.last_use < longest_unused->last_use) longest_unused = &entry;
        }
        Entry& entry = *longest_unused;
        entry.valid = build(entry.table, code, kind_);
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
        CodeTable table;
        std::uint64_t last_use = 0;
        bool valid = false;
    };
    CodeKind kind_;
    Entry entries_[places];
    std::uint64_t uses_ = 0;
};

}  // namespace hpcai500::baseline
