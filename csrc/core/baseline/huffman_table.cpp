#include "huffman_table.h"

#include <algorithm>
#include <cstring>

namespace hpcai500::baseline {
namespace {

// What a symbol says: zeros before the value, and the bits of the value that follow the code.
struct Meaning {
    int run, value_bits;
};

Meaning meaning(int symbol, Coefficients coefficients) {
    if (coefficients == Coefficients::dc) return {0, symbol};
    const int run = symbol >> 4, value_bits = symbol & 15;
    // Without a value only a run of 15 is not the end: it stands for 16 zeros.
    if (value_bits == 0 && run != 15) return {end_of_block, 0};
    return {run, value_bits};
}

// T.81, table F.1: a value whose first bit is 0 is negative.
int extend(int value, int bits) {
    if (bits == 0) return 0;
    return value < (1 << (bits - 1)) ? value + 1 - (1 << bits) : value;
}

// The entries of all lookups that begin with `code`, which has `length` bits.
void fill_decode(HuffmanTable& table, std::uint32_t code, int length, int symbol, Coefficients coefficients) {
    const int behind = decode_bits - length;
    const auto [run, value_bits] = meaning(symbol, coefficients);
    std::uint32_t* entries = table.decode + (code << behind);
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

// As many symbols as fit, of those whose code is within what `decode` sees.
std::uint16_t skip_entry(const HuffmanTable& table, std::uint32_t bits) {
    int used = 0, passed = 0;
    for (;;) {
        const std::uint32_t next = (bits << used) & ((1U << skip_bits) - 1);
        const std::uint32_t entry = table.decode[next >> (skip_bits - decode_bits)];
        const int length = static_cast<int>(entry & used_mask), run = static_cast<int>(entry >> 8 & 255);
        // Behind the known bits are zeros that may be ones in truth.
        if (length == 0 || length > skip_bits - used) break;
        used += length;
        if (run == end_of_block) return static_cast<std::uint16_t>(used | 1 << 6 | passed << 7);
        passed += run + 1;
    }
    return static_cast<std::uint16_t>(used | passed << 7);
}

}  // namespace

bool build(HuffmanTable& table, const HuffmanCode& code, Coefficients coefficients) {
    std::memset(table.decode, 0, sizeof table.decode);
    std::memcpy(table.symbols, code.symbols, sizeof table.symbols);
    std::uint32_t next = 0;
    int place = 0;
    for (int length = 1; length <= 16; ++length) {
        table.place_of_symbol[length] = place - static_cast<int>(next);
        const int count = code.counts[length - 1];
        // No code is all ones: the next longer one would begin with it.
        if (place + count > most_symbols || next + static_cast<std::uint32_t>(count) >= (1U << length))
            return false;
        for (int i = 0; i < count; ++i, ++place, ++next) {
            const int symbol = code.symbols[place];
            if (coefficients == Coefficients::dc && symbol > longest_difference) return false;
            if (length <= decode_bits) fill_decode(table, next, length, symbol, coefficients);
        }
        table.codes_below[length] = next << (16 - length);
        next <<= 1;
    }
    if (coefficients == Coefficients::ac)
        for (std::uint32_t bits = 0; bits < (1U << skip_bits); ++bits)
            table.skip[bits] = skip_entry(table, bits);
    return true;
}

}  // namespace hpcai500::baseline
