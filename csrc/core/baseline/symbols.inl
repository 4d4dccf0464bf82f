// Single symbols and values, where a table cannot give them: codes of more than `decode_bits` bits, long
// values.

// A symbol, and the bits of its code; 0 bits where no code of the table begins so.
struct Symbol {
    int symbol, length;
};

// Of the next 16 bits. It takes no reader, whose members then could not stay in registers.
HPCAI500_RARE Symbol find_symbol(std::uint32_t code, const HuffmanTable& table) {
    for (int length = 1; length <= 16; ++length)
        if (code < table.codes_below[length])
            return {table.symbols[static_cast<int>(code >> (16 - length)) + table.place_of_symbol[length]],
                    length};
    return {-1, 0};
}

// The value of the next `bits` bits, 1 to 15 (T.81, table F.1): one whose first bit is 0 is negative.
HPCAI500_INLINE int value_of(BitReader& reader, int bits) {
    const int value = static_cast<int>(reader.peek(bits));
    reader.drop(bits);
    return value < (1 << (bits - 1)) ? value + 1 - (1 << bits) : value;
}

// The symbol whose value is too long for the table; -1 where there is none. `entry` is what the table said.
HPCAI500_INLINE int symbol_of(BitReader& reader, const HuffmanTable& table, std::uint32_t entry) {
    const int length = static_cast<int>(entry >> 8 & 255);
    if (length == 0) {
        const Symbol found = find_symbol(reader.peek(16), table);
        reader.drop(found.length);
        return found.symbol;
    }
    reader.drop(length);
    return static_cast<int>(entry >> 16);
}

// Adds the next DC difference to `predictor`. False for what no 8-bit image has.
HPCAI500_INLINE bool add_difference(BitReader& reader, const HuffmanTable& table, int& predictor) {
    const std::uint32_t entry = table.decode[reader.peek(decode_bits)];
    const int used = static_cast<int>(entry & used_mask);
    if (used != 0) {
        reader.drop(used);
        predictor += static_cast<std::int16_t>(entry >> 16);
    } else {
        const int bits = symbol_of(reader, table, entry);
        if (bits < 0) return false;
        if (bits > 0) predictor += value_of(reader, bits);
    }
    return predictor >= -most_coefficient && predictor <= most_coefficient;
}
