// Open files, reading them, and the numbers in those that we write.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hpcai500 {

/// Closes the file at its end. A negative value is no file.
class Descriptor {
  public:
    explicit Descriptor(int value) : value_(value) {}
    ~Descriptor() {
        if (value_ >= 0) ::close(value_);
    }
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int value() const { return value_; }

  private:
    int value_;
};

/// openat(), again as long as a signal interrupts it. Programs that are started do not inherit the file.
Descriptor open_retrying(const char* path, int flags, int folder = AT_FDCWD);

/// Opens a regular file to be read. Throws DecodeError (unreadable) with the system's reason, as do the next
/// two.
Descriptor open_regular(const char* path, int folder = AT_FDCWD);
std::uint64_t size_of(int file);
/// Reads until `to` is full or the file ends. Returns the bytes read.
std::size_t read_at(int file, std::uint64_t offset, std::span<std::uint8_t> to);
/// The same; -1, and errno, where the system cannot.
std::ptrdiff_t try_read_at(int file, std::uint64_t offset, std::span<std::uint8_t> to);

/// A number with the least byte first, whatever the processor has.
template <std::unsigned_integral Number>
Number load_little(const std::uint8_t* bytes) {
    Number value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
        value = static_cast<Number>(value | static_cast<Number>(bytes[i]) << (8 * i));
    return value;
}

template <std::unsigned_integral Number>
void append_little(std::vector<std::uint8_t>& to, Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) to.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

}  // namespace hpcai500
