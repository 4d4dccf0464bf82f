// Entropy-coded data (T.81, F.2.2) to the coefficients of blocks, or past them. Part of kernel.inl.
//
// Stuffed bytes and markers are gone (unstuff(), decoder.h). The next bits are the upper ones of a 64-bit
// window, most significant first. refill() loads 8 bytes at once without asking how many are needed: bits
// that the window held already are loaded again, the same, and `next` advances by whole bytes only.

// After refill() at least this many bits are in the window.
constexpr int bits_after_refill = 56;

class BitReader {
  public:
    explicit BitReader(const BitState& state)
        : next_(state.next), window_(state.window), filled_(state.filled) {}
    BitState state() const { return {next_, window_, filled_}; }

    // Reads up to 8 bytes behind the last bit: the data ends in as much padding (decoder.h).
    HPCAI500_INLINE void refill() {
        std::uint64_t bytes;
        __builtin_memcpy(&bytes, next_, sizeof bytes);
        if constexpr (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) bytes = __builtin_bswap64(bytes);
        window_ |= bytes >> filled_;
        next_ += (63 - filled_) >> 3;
        filled_ |= bits_after_refill;
    }

    HPCAI500_INLINE std::uint32_t peek(int bits) const {
        return static_cast<std::uint32_t>(window_ >> (64 - bits));
    }

    // The bits that follow the next `bits` ones.
    HPCAI500_INLINE std::uint64_t after(int bits) const { return window_ << bits; }

    HPCAI500_INLINE void drop(int bits) {
        window_ <<= bits;
        filled_ -= bits;
    }

    // Whether bits behind `end` were used.
    HPCAI500_INLINE bool beyond(const std::uint8_t* end) const { return (next_ - end) * 8 > filled_; }

  private:
    const std::uint8_t* next_;
    std::uint64_t window_;
    int filled_;
};

// A symbol whose code is too long for a lookup, and the bits of that; 0 bits where no code of the table
// begins so.
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

// Passes over one block: only its DC difference counts, the rest is lengths. One lookup takes several
// symbols. False where the data is not what a baseline image has.
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
