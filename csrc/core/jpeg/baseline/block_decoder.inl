// The coefficients of one block, in the order of its rows (T.81, F.2.2).

// The zigzag order (T.81, Figure 5): place in the block of the n-th coefficient as it is coded. What lies
// behind the 64th goes to a place of its own, so that a run out of the block is found after it was written,
// and once.
// clang-format off
#define HPCAI500_BEHIND_32 \
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, \
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64
alignas(64) constexpr std::uint8_t place_in_block[64 + end_of_block] = {
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    HPCAI500_BEHIND_32, HPCAI500_BEHIND_32, HPCAI500_BEHIND_32, HPCAI500_BEHIND_32,
};
#undef HPCAI500_BEHIND_32
// clang-format on
// With that place, and so many that the next block begins where whole vectors can be loaded from.
constexpr int block_room = 96;
static_assert(block_room > 64 && block_room * sizeof(std::int16_t) % 64 == 0);

// What a block with something that no baseline image has ends with: a place in no block.
constexpr int no_place = 65;

// Decodes one symbol, of any length, where the next coefficient's place is `place`. Returns the place behind
// it; behind the block's end, end_of_block and 1 more.
HPCAI500_INLINE int decode_symbol(BitReader& reader, const CoefficientTable& table, int place,
                                  std::int16_t* block) {
    reader.refill();
    const std::uint32_t entry = table.single[reader.peek(decode_bits)];
    if (const int used = static_cast<int>(entry & used_mask); used != 0) {
        reader.drop(used);
        place += static_cast<int>(entry >> 8 & 255);
        block[place_in_block[place]] = static_cast<std::int16_t>(entry >> 16);
        return place + 1;
    }
    const int symbol = long_symbol(reader, table, entry);
    if (symbol < 0) return no_place;
    const int value_bits = symbol & 15, run = symbol >> 4;
    if (value_bits == 0) return place + (run == longest_run ? longest_run : end_of_block) + 1;
    place += run;
    block[place_in_block[place]] = static_cast<std::int16_t>(value_of(reader.after(0), value_bits));
    reader.drop(value_bits);
    return place + 1;
}

HPCAI500_INLINE int take_pair(BitReader& reader, const CoefficientPair& pair, int place,
                              std::int16_t* block) {
    reader.drop(pair.used);
    block[place_in_block[place + pair.first_place]] = pair.first;
    block[place_in_block[place + pair.second_place]] = pair.second;
    return place + pair.behind;
}

// Writes the coefficients to `block`, which is all zeros. Returns how many were coded, the last one's place
// and 1, or 0 where the data is not what a baseline image has.
HPCAI500_INLINE int decode_block(BitReader& reader, const Component& component, int& predictor,
                                 std::int16_t* block) {
    const CoefficientTable& table = *component.ac;
    reader.refill();
    if (!add_difference(reader, *component.dc, predictor)) return 0;
    block[0] = static_cast<std::int16_t>(predictor);
    int place = 1;
    // Lookups are as many as the bits suffice for: a question after each, whether they still do, is answered
    // by chance and costs more than refilling.
    constexpr int lookups = bits_after_refill / decode_bits;
    while (place <= last_place_of_pairs) {
        reader.refill();
        for (int lookup = 0; lookup < lookups && place <= last_place_of_pairs; ++lookup) {
            const CoefficientPair pair = table.pairs[reader.peek(decode_bits)];
            if (pair.used == 0) [[unlikely]] {
                place = decode_symbol(reader, table, place, block);
                break;
            }
            place = take_pair(reader, pair, place, block);
        }
    }
    // Here the first of a pair may fill the block, and the second be the next one's.
    while (place < 64) {
        reader.refill();
        for (int lookup = 0; lookup < lookups && place < 64; ++lookup) {
            const CoefficientPair pair = table.pairs[reader.peek(decode_bits)];
            if (pair.used == 0 || (place + pair.behind) % end_of_block > 64) [[unlikely]] {
                place = decode_symbol(reader, table, place, block);
                break;
            }
            place = take_pair(reader, pair, place, block);
        }
    }
    if (place > end_of_block) return place - end_of_block - 1;
    return place == 64 ? 64 : 0;
}
