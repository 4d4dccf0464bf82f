// Runs of values from one place and type to another, 32 at a time, past the cache where whole lines of 64
// bytes are written. A source has load(at), which gives values `at` to `at` + 32, and load_some(at, count),
// which gives fewer and reads no further. No byte outside a run is read or written.

namespace hpcai500 {
namespace {

inline constexpr long line_bytes = 64;
inline constexpr long step = 32;

template <class To, class Source>
inline void write_some(Source& source, std::uint8_t* out, long at, long count) {
    constexpr long item = sizeof(typename To::Item);
    if (count == 0) return;
    alignas(64) std::uint8_t scratch[step * item];
    store_two<To>(scratch, source.load_some(at, count), false);
    std::memcpy(out + at * item, scratch, static_cast<std::size_t>(count * item));
}

// Whole steps from `at` on that end by `end`; returns where they end. The source is a copy meanwhile: what it
// holds stays in registers, whatever is written.
template <class To, bool past_cache, class Source>
HPCAI500_INLINE long write_steps(Source& given, std::uint8_t* out, long at, long end) {
    constexpr long item = sizeof(typename To::Item);
    Source source = given;
    for (; at + step <= end; at += step) store_two<To>(out + at * item, source.load(at), past_cache);
    given = source;
    return at;
}

/// Of `count` values that go to `out`, how many come before the first whole line; 0 where lines are not
/// written past the cache: `past_cache` is false, or no item begins at a line.
template <class To>
inline long before_line(const void* out, long count, bool past_cache) {
    constexpr long item = sizeof(typename To::Item);
    const long misaligned = static_cast<long>(reinterpret_cast<std::uintptr_t>(out) % line_bytes);
    if (!past_cache || misaligned == 0 || misaligned % item != 0) return 0;
    const long to_line = (line_bytes - misaligned) / item;
    return to_line < count ? to_line : count;
}

/// Writes `count` values. With `past_cache`, a fence() has to follow.
template <class To, class Source>
HPCAI500_INLINE void write_run(Source& source, void* to, long count, bool past_cache) {
    auto* const out = static_cast<std::uint8_t*>(to);
    const long head = before_line<To>(out, count, past_cache);
    write_some<To>(source, out, 0, head);
    past_cache = past_cache && reinterpret_cast<std::uintptr_t>(out) % sizeof(typename To::Item) == 0;
    const long at = past_cache ? write_steps<To, true>(source, out, head, count)
                               : write_steps<To, false>(source, out, head, count);
    write_some<To>(source, out, at, count - at);
}

}  // namespace
}  // namespace hpcai500
