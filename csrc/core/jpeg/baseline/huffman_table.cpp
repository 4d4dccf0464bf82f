#include "huffman_table.h"

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

// An entry of CoefficientTable::single, taken apart.
struct Single {
    int used, run, value;
    bool ends() const { return run == end_of_block; }
};

// What `bits`, the next `known` bits and zeros behind them, begin with; 0 bits used where not all of it is
// known.
Single single(const CoefficientTable& table, std::uint32_t bits, int known) {
    const std::uint32_t entry = table.single[bits];
    const Single found{static_cast<int>(entry & used_mask), static_cast<int>(entry >> 8 & 255),
                       static_cast<std::int16_t>(entry >> 16)};
    return found.used > known ? Single{} : found;
}

constexpr std::uint32_t lowest(std::uint32_t bits, int count) {
    return bits & ((1U << count) - 1);
}

// The entries of all lookups that begin with `code`, which has `length` bits.
void fill_single(CoefficientTable& table, std::uint32_t code, int length, int symbol) {
    const int behind = decode_bits - length, value_bits = symbol & 15;
    // Without a value only a run of 15 is not the end: it stands for 16 zeros.
    const int run = value_bits == 0 && symbol >> 4 != longest_run ? end_of_block : symbol >> 4;
    std::uint32_t* entries = table.single + (code << behind);
    for (std::uint32_t rest = 0; rest < (1U << behind); ++rest) {
        if (value_bits > behind) {
            entries[rest] = static_cast<std::uint32_t>(length << 8 | symbol << 16);
            continue;
        }
        const int value = extend(static_cast<int>(rest >> (behind - value_bits)), value_bits);
        entries[rest] = static_cast<std::uint32_t>(length + value_bits) |
                        static_cast<std::uint32_t>(run) << 8 |
                        static_cast<std::uint32_t>(static_cast<std::uint16_t>(value)) << 16;
    }
}

CoefficientPair pair(const CoefficientTable& table, std::uint32_t bits) {
    constexpr auto nowhere = static_cast<std::uint8_t>(end_of_block);
    const Single first = single(table, bits, decode_bits);
    CoefficientPair found{static_cast<std::uint8_t>(first.used),  static_cast<std::uint8_t>(first.run + 1),
                          static_cast<std::uint8_t>(first.run),   nowhere,
                          static_cast<std::int16_t>(first.value), 0};
    if (first.used == 0 || first.ends()) return found;
    const Single second = single(table, lowest(bits << first.used, decode_bits), decode_bits - first.used);
    if (second.used == 0) return found;
    found.used = static_cast<std::uint8_t>(first.used + second.used);
    if (!second.ends()) {
        found.second_place = static_cast<std::uint8_t>(found.behind + second.run);
        found.second = static_cast<std::int16_t>(second.value);
    }
    found.behind = static_cast<std::uint8_t>(found.behind + second.run + 1);
    return found;
}

// As many symbols as fit, of those whose code is within what `single` sees.
std::uint16_t skip(const CoefficientTable& table, std::uint32_t bits) {
    int used = 0, passed = 0;
    for (;;) {
        const std::uint32_t next = lowest(bits << used, skip_bits) >> (skip_bits - decode_bits);
        const Single found = single(table, next, skip_bits - used);
        if (found.used == 0) break;
        used += found.used;
        if (found.ends()) return static_cast<std::uint16_t>(used | 1 << 6 | passed << 7);
        passed += found.run + 1;
    }
    return static_cast<std::uint16_t>(used | passed << 7);
}

}  // namespace

bool build(DifferenceTable& table, const HuffmanCode& code) {
    std::memset(table.entries, 0, sizeof table.entries);
    return for_each_code(code, table.long_codes, [&](std::uint32_t bits, int length, int symbol) {
        if (symbol > longest_difference) return false;
        if (length > decode_bits) return true;
        const int behind = decode_bits - length;
        for (std::uint32_t rest = 0; rest < (1U << behind); ++rest)
            table.entries[(bits << behind) + rest] = {static_cast<std::uint8_t>(length + symbol),
                                                      static_cast<std::uint8_t>(length),
                                                      static_cast<std::uint8_t>(symbol)};
        return true;
    });
}

bool build(CoefficientTable& table, const HuffmanCode& code) {
    std::memset(table.single, 0, sizeof table.single);
    const bool good = for_each_code(code, table.long_codes, [&](std::uint32_t bits, int length, int symbol) {
        if (length <= decode_bits) fill_single(table, bits, length, symbol);
        return true;
    });
    if (!good) return false;
    for (std::uint32_t bits = 0; bits < (1U << decode_bits); ++bits) table.pairs[bits] = pair(table, bits);
    for (std::uint32_t bits = 0; bits < (1U << skip_bits); ++bits) table.skip[bits] = skip(table, bits);
    return true;
}

}  // namespace hpcai500::baseline
