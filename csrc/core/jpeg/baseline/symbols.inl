// Single symbols and values, where a lookup cannot give them: codes of more than `decode_bits` bits, long
// values.

// A symbol, and the bits of its code; 0 bits where no code of the table begins so.
struct Symbol {
    int symbol, length;
};

// Of the next 16 bits. It takes no reader, whose members then could not stay in registers.
HPCAI500_RARE Symbol find_symbol(std::uint32_t code, const LongCodes& codes) {
    for (int length = 1; length <= 16; ++length)
        if (code < codes.codes_below[length])
            return {codes.symbols[static_cast<int>(code >> (16 - length)) + codes.place_of_symbol[length]],
                    length};
    return {-1, 0};
}

// The value in the upper `bits` bits of `window`, 0 to 15 (T.81, EXTEND): one whose first bit is 0 is
// negative. Without a branch, which a value's sign would take by chance.
HPCAI500_INLINE int value_of(std::uint64_t window, int bits) {
    const int value = static_cast<int>(window >> 1 >> (63 - bits));
    const int if_negative = 1 - (1 << bits);
    return value + (if_negative & static_cast<int>(~static_cast<std::int64_t>(window) >> 63));
}

// Adds the next DC difference to `predictor`. False for what no 8-bit image has.
HPCAI500_INLINE bool add_difference(BitReader& reader, const DifferenceTable& table, int& predictor) {
    DifferenceTable::Entry entry = table.entries[reader.peek(decode_bits)];
    if (entry.used == 0) [[unlikely]] {
        const Symbol found = find_symbol(reader.peek(16), table.long_codes);
        if (found.length == 0) return false;
        entry = {static_cast<std::uint8_t>(found.length + found.symbol),
                 static_cast<std::uint8_t>(found.length), static_cast<std::uint8_t>(found.symbol)};
    }
    predictor += value_of(reader.after(entry.code_bits), entry.value_bits);
    reader.drop(entry.used);
    return predictor >= -most_coefficient && predictor <= most_coefficient;
}

// The AC symbol whose value is too long for the table; -1 where there is none. `entry` is that of
// CoefficientTable::single.
HPCAI500_INLINE int long_symbol(BitReader& reader, const CoefficientTable& table, std::uint32_t entry) {
    const int length = static_cast<int>(entry >> 8 & 255);
    if (length == 0) {
        const Symbol found = find_symbol(reader.peek(16), table.long_codes);
        reader.drop(found.length);
        return found.symbol;
    }
    reader.drop(length);
    return static_cast<int>(entry >> 16);
}
