// Scratch memory that only grows: after the largest image has been seen, a thread allocates nothing any more.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

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
    ~GrowBuffer() { ::operator delete(data_, alignment); }

    /// At least `count` elements; throws std::bad_alloc and keeps the old ones if there is no memory.
    T* reserve(std::size_t count) {
        if (count > capacity_) {
            if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
            const std::size_t wanted = count + count / 4;
            void* fresh = ::operator new(wanted * sizeof(T), alignment);
            // Vector loads read the padding behind a row: it is never used, but it shall be defined.
            std::memset(fresh, 0, wanted * sizeof(T));
            ::operator delete(data_, alignment);
            data_ = static_cast<T*>(fresh);
            capacity_ = wanted;
        }
        return data_;
    }

    T* data() { return data_; }
    const T* data() const { return data_; }

  private:
    T* data_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace hpcai500
