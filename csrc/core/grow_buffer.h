// Scratch memory that only grows: after the largest image has been seen, a thread allocates nothing any more.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define HPCAI500_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HPCAI500_ADDRESS_SANITIZER
#endif
#endif
#ifdef HPCAI500_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace hpcai500 {

/// An array of trivial elements, aligned to a cache line. Growing loses its contents.
template <class T>
class GrowBuffer {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    static constexpr std::align_val_t alignment{64};

  public:
    GrowBuffer() = default;
    GrowBuffer(const GrowBuffer&) = delete;
    GrowBuffer& operator=(const GrowBuffer&) = delete;
    ~GrowBuffer() {
        allow(capacity_);
        ::operator delete(data_, alignment);
    }

    /// At least `count` elements; throws std::bad_alloc and keeps the old ones if there is no memory.
    T* reserve(std::size_t count) {
        if (count > capacity_) {
            if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
            const std::size_t wanted = count + count / 4;
            void* fresh = ::operator new(wanted * sizeof(T), alignment);
            // Vector loads read the padding behind a row: it is never used, but it shall be defined.
            std::memset(fresh, 0, wanted * sizeof(T));
            allow(capacity_);
            ::operator delete(data_, alignment);
            data_ = static_cast<T*>(fresh);
            capacity_ = wanted;
        }
        allow(count);
        return data_;
    }

    T* data() { return data_; }
    const T* data() const { return data_; }

  private:
    // What an earlier, larger use has left is not this one's: the sanitizer shall see a touch of it.
    void allow([[maybe_unused]] std::size_t count) {
#ifdef HPCAI500_ADDRESS_SANITIZER
        ASAN_UNPOISON_MEMORY_REGION(data_, count * sizeof(T));
        ASAN_POISON_MEMORY_REGION(data_ + count, (capacity_ - count) * sizeof(T));
#endif
    }

    T* data_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace hpcai500
