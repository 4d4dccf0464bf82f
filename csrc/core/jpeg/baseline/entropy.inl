// Entropy-coded data (T.81, F.2.2) to the coefficients of blocks, or past them. Part of kernel.inl.
//
// Stuffed bytes and markers are gone (unstuff(), decoder.h). The next bits are the upper ones of a 64-bit
// window, most significant first. refill() loads 8 bytes at once without asking how many are needed: bits
// that the window held already are loaded again, the same, and `next` advances by whole bytes only.

// After refill() at least this many bits are in the window.
constexpr int bits_after_refill = 56;

// Lookups that these suffice for. A question after each, whether they still do, is answered by chance and
// costs more than refilling.
constexpr int lookups = bits_after_refill / code_bits;

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

// The zigzag order (T.81, Figure 5): place in the block of the n-th coefficient as it is coded. What lies
// behind the 64th goes to a place of its own, so that a run out of the block is found after it was written,
// and once.
// clang-format off
#define HPCAI500_BEHIND_32 \
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, \
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64
alignas(64) constexpr std::uint8_t place_in_block[block_size + nowhere] = {
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
static_assert(block_room > block_size && block_room * sizeof(std::int16_t) % 64 == 0);

// What one code says: zeros, and the value behind them; or that the block ends. Not `good` where the bits are
// no code of the table.
struct Coefficient {
    int run, value;
    bool ends, good;
};

// The next code by itself, of any length. `used` and `pair` are the entries of the next bits.
HPCAI500_INLINE Coefficient read_one(BitReader& reader, const CodeTable& table, int used,
                                     const CodePair& pair) {
    reader.refill();
    int length = pair.first_used, symbol = pair.first;
    if (used != 0) {
        reader.drop(length);
        return {pair.first_place, pair.first, pair.first_place == nowhere, true};
    }
    if (length == 0) {
        const Symbol found = find_symbol(reader.peek(16), table.long_codes);
        if (found.length == 0) return {0, 0, false, false};
        length = found.length;
        symbol = found.symbol;
    }
    const int value_bits = symbol & 15, run = symbol >> 4, value = value_of(reader.after(length), value_bits);
    reader.drop(length + value_bits);
    return {run, value, value_bits == 0 && run != longest_run, true};
}

// Adds the next DC difference to `predictor`. False for what no 8-bit image has.
HPCAI500_INLINE bool add_difference(BitReader& reader, const CodeTable& table, int& predictor) {
    const std::uint32_t bits = reader.peek(code_bits);
    const int used = table.used[bits];
    const CodePair& pair = table.pairs[bits];
    if (used != 0) [[likely]] {
        reader.drop(used);
        predictor += pair.first;
    } else {
        const Coefficient found = read_one(reader, table, used, pair);
        if (!found.good) return false;
        predictor += found.value;
    }
    return predictor >= -most_coefficient && predictor <= most_coefficient;
}

// Writes the coefficients to `block`, which is all zeros. Returns how many were coded, the last one's place
// and 1, or 0 where the data is not what a baseline image has.
HPCAI500_INLINE int decode_block(BitReader& reader, const Component& component, int& predictor,
                                 std::int16_t* block) {
    const CodeTable& table = *component.ac;
    reader.refill();
    if (!add_difference(reader, *component.dc, predictor)) return 0;
    block[0] = static_cast<std::int16_t>(predictor);
    int place = 1;
    for (;;) {
        reader.refill();
        for (int lookup = 0; lookup < lookups; ++lookup) {
            const std::uint32_t bits = reader.peek(code_bits);
            const int used = static_cast<std::int8_t>(table.used[bits]);
            const CodePair pair = table.pairs[bits];
            // Where the first fills the block, the second is the next block's.
            if (place + pair.coefficients >= block_size) [[unlikely]] {
                const Coefficient found = read_one(reader, table, used, pair);
                if (found.ends) return place;
                place += found.run;
                if (!found.good || place >= block_size) return 0;
                block[place_in_block[place]] = static_cast<std::int16_t>(found.value);
                if (++place == block_size) return place;
                break;
            }
            reader.drop(used & used_mask);
            block[place_in_block[place + pair.first_place]] = pair.first;
            block[place_in_block[place + pair.second_place]] = pair.second;
            place += pair.coefficients;
            if (used < 0) return place;
        }
    }
}

// Passes over one block: only its DC difference counts, the rest is lengths. False where the data is not what
// a baseline image has.
HPCAI500_INLINE bool skip_block(BitReader& reader, const Component& component, int& predictor) {
    const CodeTable& table = *component.ac;
    reader.refill();
    if (!add_difference(reader, *component.dc, predictor)) return false;
    int place = 1;
    for (;;) {
        reader.refill();
        for (int lookup = 0; lookup < lookups; ++lookup) {
            const std::uint32_t bits = reader.peek(code_bits);
            const int used = static_cast<std::int8_t>(table.skip_used[bits]);
            const int coefficients = table.skip_coefficients[bits];
            if (place + coefficients >= block_size) [[unlikely]] {
                const Coefficient found = read_one(reader, table, table.used[bits], table.pairs[bits]);
                if (found.ends) return true;
                place += found.run + 1;
                if (!found.good || place > block_size) return false;
                if (place == block_size) return true;
                break;
            }
            reader.drop(used & used_mask);
            if (used < 0) return true;
            place += coefficients;
        }
    }
}
