// From float32 to the wire's type and back. Part of compression_kernel.inl.

// The three types as they lie in memory: load() gives 32 values times `scale`.
struct Float32 {
    using Item = float;
    const Item* first;
    float scale;
    Step load(long at) const { return times(load_step(first + at), scale); }
    static void store(Item* out, Step values, bool stream) { store_step(out, values, stream); }
};
struct Float16 {
    using Item = std::uint16_t;
    const Item* first;
    float scale;
    Step load(long at) const {
        return times({load_float16(first + at), load_float16(first + at + 16)}, scale);
    }
    static void store(Item* out, Step values, bool stream) {
        store_float16(out, values.low, values.high, stream);
    }
};
struct BFloat16 {
    using Item = std::uint16_t;
    const Item* first;
    float scale;
    Step load(long at) const {
        return times({load_bfloat16(first + at), load_bfloat16(first + at + 16)}, scale);
    }
    static void store(Item* out, Step values, bool stream) {
        store_bfloat16(out, values.low, values.high, stream);
    }
};

// Fewer values than a step has, from a padded copy: no byte outside the run is touched.
template <class From>
inline Step load_some(const From& source, long at, long count) {
    alignas(64) typename From::Item scratch[step] = {};
    std::memcpy(scratch, source.first + at, static_cast<std::size_t>(count) * sizeof(typename From::Item));
    return From{scratch, source.scale}.load(0);
}

template <class From>
inline void sum_squares(Squares32& squares, const From& source, long begin, long end) {
    long at = begin;
    for (; at + step <= end; at += step) {
        prefetch_behind(source.first + at);
        add_squares(squares, source.load(at));
    }
    if (at < end) add_squares(squares, load_some(source, at, end - at));
}

template <class To, class From>
inline void cast_some(const From& source, typename To::Item* out, long at, long count) {
    if (count == 0) return;
    alignas(64) typename To::Item scratch[step];
    To::store(scratch, load_some(source, at, count), false);
    std::memcpy(out + at, scratch, static_cast<std::size_t>(count) * sizeof(typename To::Item));
}

// Whole steps from `at` on that end by `end`; returns where they end.
template <class To, bool stream, class From>
inline long cast_steps(const From& source, typename To::Item* out, long at, long end) {
    for (; at + step <= end; at += step) {
        prefetch_behind(source.first + at);
        To::store(out + at, source.load(at), stream);
    }
    return at;
}

// Squares and casts take turns over parts that stay in the first-level cache. Both passes read the same
// values, but the sum's lanes are counted from the run's start and the lines from where memory has them.
template <class To, bool squared, class From, class Squared>
inline double cast_run(const From& source, const Squared& summed, const CastRun& run) {
    constexpr long part = 4096;
    auto* const out = static_cast<typename To::Item*>(run.out);
    constexpr long item = sizeof(typename To::Item);
    const long misaligned = static_cast<long>(reinterpret_cast<std::uintptr_t>(out) % line_bytes);
    const long to_line = misaligned == 0 ? 0 : (line_bytes - misaligned) / item;
    const long head = run.stream ? (to_line < run.count ? to_line : run.count) : 0;
    cast_some<To>(source, out, 0, head);
    Squares32 squares{};
    long at = head;
    for (long begin = 0; begin < run.count; begin += squared ? part : run.count) {
        const long end = squared && run.count - begin > part ? begin + part : run.count;
        if (squared) sum_squares(squares, summed, begin, end);
        at = run.stream ? cast_steps<To, true>(source, out, at, end)
                        : cast_steps<To, false>(source, out, at, end);
    }
    cast_some<To>(source, out, at, run.count - at);
    return squared ? total(squares) : 0.0;
}

template <class Wire, bool squared>
double pack_run(const CastRun& run) {
    const auto* const values = static_cast<const float*>(run.source);
    return cast_run<Wire, squared>(Float32{values, run.scale}, Float32{values, 1.0f}, run);
}

template <class Wire, bool squared>
double unpack_run(const CastRun& run) {
    const Wire source{static_cast<const typename Wire::Item*>(run.source), run.scale};
    return cast_run<Float32, squared>(source, source, run);
}
