// Runs of values from one place and type to another, 32 at a time, past the cache where whole lines of 64
// bytes are written. A source has load(at), which gives values `at` to `at` + 32, and load_some(at, count),
// which gives fewer and reads no further. No byte outside a run is read or written.

namespace hpcai500 {
namespace {

inline constexpr long line_bytes = 64;
inline constexpr long step = 32;

template <class To, class Source>
inline void write_some(const Source& source, std::uint8_t* out, long at, long count) {
    constexpr long item = sizeof(typename To::Item);
    if (count == 0) return;
    alignas(64) std::uint8_t scratch[step * item];
    store_two<To>(scratch, source.load_some(at, count), false);
    std::memcpy(out + at * item, scratch, static_cast<std::size_t>(count * item));
}

// The source is a copy: what it holds stays in registers, whatever is written.
// Whole steps from `at` on that end by `end`; returns where they end.
template <class To, bool past_cache, class Source>
HPCAI500_INLINE long write_steps(Source source, std::uint8_t* out, long at, long end) {
    constexpr long item = sizeof(typename To::Item);
    for (; at + step <= end; at += step) store_two<To>(out + at * item, source.load(at), past_cache);
    return at;
}

/// Writes `count` values, in parts of `part`; calls before(begin, end) before each. With `past_cache`, a
/// fence() has to follow.
template <class To, class Source, class Before>
HPCAI500_INLINE void write_run(const Source& source, void* to, long count, bool past_cache, long part,
                               const Before& before) {
    constexpr long item = sizeof(typename To::Item);
    auto* const out = static_cast<std::uint8_t*>(to);
    const long misaligned = static_cast<long>(reinterpret_cast<std::uintptr_t>(out) % line_bytes);
    // From an odd address, no step gets to the begin of a line.
    past_cache = past_cache && misaligned % item == 0;
    const long to_line = misaligned == 0 ? 0 : (line_bytes - misaligned) / item;
    const long head = past_cache ? (to_line < count ? to_line : count) : 0;
    write_some<To>(source, out, 0, head);
    long at = head;
    for (long begin = 0; begin < count; begin += part) {
        const long end = count - begin > part ? begin + part : count;
        before(begin, end);
        at = past_cache ? write_steps<To, true>(source, out, at, end)
                        : write_steps<To, false>(source, out, at, end);
    }
    write_some<To>(source, out, at, count - at);
}

}  // namespace
}  // namespace hpcai500
