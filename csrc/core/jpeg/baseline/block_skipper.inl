// Passes over one block: only its DC difference counts, the rest is lengths. One lookup takes several
// symbols.

// False where the data is not what a baseline image has.
HPCAI500_INLINE bool skip_block(BitReader& reader, const Component& component, int& predictor) {
    const CoefficientTable& table = *component.ac;
    reader.refill();
    if (!add_difference(reader, *component.dc, predictor)) return false;
    int place = 1;
    while (place < 64) {
        reader.refill();
        for (int lookup = 0; lookup < bits_after_refill / skip_bits && place < 64; ++lookup) {
            const int entry = table.skip[reader.peek(skip_bits)];
            const int used = entry & used_mask, behind = place + (entry >> 7);
            const bool ends = (entry & 1 << 6) != 0;
            // A block that is full has no end-of-block symbol: the one that was seen then belongs to the next
            // block.
            if (used != 0 && behind < 64 + (ends ? 0 : 1)) [[likely]] {
                reader.drop(used);
                if (ends) return true;
                place = behind;
                continue;
            }
            reader.refill();
            const std::uint32_t single = table.single[reader.peek(decode_bits)];
            const int length = static_cast<int>(single & used_mask);
            if (length != 0) {
                reader.drop(length);
                place += static_cast<int>(single >> 8 & 255) + 1;
                break;
            }
            const int symbol = long_symbol(reader, table, single);
            if (symbol < 0) return false;
            const int value_bits = symbol & 15, run = symbol >> 4;
            if (value_bits == 0 && run != 15) return true;
            place += run + 1;
            reader.drop(value_bits);
            break;
        }
    }
    return place == 64 || place > end_of_block;
}
