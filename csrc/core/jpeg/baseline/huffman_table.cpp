#include "huffman_table.h"

#include <algorithm>
#include <cstring>

namespace hpcai500::baseline {
namespace {

// Calls enter(code, its length, symbol) for each code, in their order, until it returns false. False then,
// and for a code that breaks the rules.
template <class Enter>
bool for_each_code(const HuffmanCode& code, LongCodes& long_codes, const Enter& enter) {
    std::memcpy(long_codes.symbols, code.symbols, sizeof long_codes.symbols);
    std::uint32_t next = 0;
    int place = 0;
    for (int length = 1; length <= 16; ++length) {
        long_codes.place_of_symbol[length] = place - static_cast<int>(next);
        const int count = code.counts[length - 1];
        // No code is all ones: the next longer one would begin with it.
        if (place + count > most_symbols || next + static_cast<std::uint32_t>(count) >= (1U << length))
            return false;
        for (int i = 0; i < count; ++i, ++place, ++next)
            if (!enter(next, length, int{code.symbols[place]})) return false;
        long_codes.codes_below[length] = next << (16 - length);
        next <<= 1;
    }
    return true;
}

// T.81, EXTEND: a value whose first bit is 0 is negative.
int extend(int value, int bits) {
    if (bits == 0) return 0;
    return value < (1 << (bits - 1)) ? value + 1 - (1 << bits) : value;
}

constexpr std::uint32_t all = (1U << code_bits) - 1;

// What stands where no code begins that a lookup sees.
constexpr CodePair too_long = {block_size, nowhere, nowhere, 0, 0, 0};

// The entries of all lookups that begin with `code`, which has `length` bits: of it alone.
void enter_first(CodeTable& table, CodeKind kind, std::uint32_t code, int length, int symbol) {
    const int behind = code_bits - length, value_bits = symbol & 15, run = symbol >> 4;
    // Without a value only a run of 15 is not the end: it stands for 16 zeros.
    const bool ends = kind == CodeKind::coefficients && value_bits == 0 && run != longest_run;
    CodePair pair = too_long;
    if (value_bits > behind) {
        pair.first_used = static_cast<std::uint8_t>(length);
        pair.first = static_cast<std::int16_t>(symbol);
    } else {
        pair.first_used = static_cast<std::uint8_t>(length + value_bits);
        pair.first_place = static_cast<std::uint8_t>(ends ? nowhere : run);
        pair.coefficients = static_cast<std::uint8_t>(ends ? 0 : run + 1);
    }
    const bool fits = pair.coefficients != block_size;
    const std::uint32_t begin = code << behind;
    std::memset(table.used + begin, fits ? pair.first_used | (ends ? ends_block : 0) : 0, 1U << behind);
    for (std::uint32_t rest = 0; rest < (1U << behind); ++rest) {
        if (fits)
            pair.first = static_cast<std::int16_t>(
                extend(static_cast<int>(rest >> (behind - value_bits)), value_bits));
        table.pairs[begin + rest] = pair;
    }
}

// Adds the code that follows the first of the entry `bits`, where all of it is among these bits.
void enter_second(CodeTable& table, std::uint32_t bits) {
    CodePair& pair = table.pairs[bits];
    const std::uint8_t used = table.used[bits];
    if (used == 0 || used >= ends_block) return;
    const std::uint32_t rest = bits << used & all;
    // Of that entry only what its first code says counts: its second may be entered already.
    const CodePair& next = table.pairs[rest];
    if (table.used[rest] == 0 || used + next.first_used > code_bits) return;
    table.used[bits] = static_cast<std::uint8_t>(used + next.first_used);
    if (next.first_place == nowhere) {
        table.used[bits] |= ends_block;
        return;
    }
    pair.second_place = static_cast<std::uint8_t>(pair.coefficients + next.first_place);
    pair.second = next.first;
    pair.coefficients = static_cast<std::uint8_t>(pair.second_place + 1);
}

// As many codes as fit.
void enter_skip(CodeTable& table, std::uint32_t bits) {
    int used = 0, coefficients = 0;
    bool ends = false;
    while (!ends) {
        const std::uint32_t next = bits << used & all;
        const CodePair& pair = table.pairs[next];
        if (table.used[next] == 0 || used + pair.first_used > code_bits) break;
        used += pair.first_used;
        ends = pair.first_place == nowhere;
        if (!ends) coefficients += pair.first_place + 1;
    }
    table.skip_used[bits] = static_cast<std::uint8_t>(ends ? used | ends_block : used);
    table.skip_coefficients[bits] = static_cast<std::uint8_t>(used == 0 ? block_size : coefficients);
}

}  // namespace

bool build(CodeTable& table, const HuffmanCode& code, CodeKind kind) {
    std::memset(table.used, 0, sizeof table.used);
    std::fill_n(table.pairs, 1 << code_bits, too_long);
    const bool good = for_each_code(code, table.long_codes, [&](std::uint32_t bits, int length, int symbol) {
        if (kind == CodeKind::differences && symbol > longest_difference) return false;
        if (length <= code_bits) enter_first(table, kind, bits, length, symbol);
        return true;
    });
    if (!good || kind == CodeKind::differences) return good;
    for (std::uint32_t bits = 0; bits <= all; ++bits) enter_skip(table, bits);
    for (std::uint32_t bits = 0; bits <= all; ++bits) enter_second(table, bits);
    return true;
}

}  // namespace hpcai500::baseline
