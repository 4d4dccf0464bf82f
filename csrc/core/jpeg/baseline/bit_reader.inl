// The bits of entropy-coded data, most significant first. Stuffed bytes and markers are gone (unstuff.h).
//
// The next bits are the upper ones of a 64-bit window. refill() loads 8 bytes at once without asking how many
// are needed: bits that the window held already are loaded again, the same, and `next` advances by whole
// bytes only.

// After refill() at least this many bits are in the window.
constexpr int bits_after_refill = 56;

class BitReader {
  public:
    explicit BitReader(const BitState& state)
        : next_(state.next), window_(state.window), filled_(state.filled) {}
    BitState state() const { return {next_, window_, filled_}; }

    // Reads up to 8 bytes behind the last bit: the data ends in as much padding (unstuff.h).
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
