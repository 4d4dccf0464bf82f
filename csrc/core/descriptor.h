// An open file.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hpcai500 {

/// Closes the file at its end. A negative value is no file.
class Descriptor {
  public:
    explicit Descriptor(int value) : value_(value) {}
    ~Descriptor() {
        if (value_ >= 0) ::close(value_);
    }
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int value() const { return value_; }

  private:
    int value_;
};

/// openat(), again as long as a signal interrupts it.
inline int open_retrying(int folder, const char* path, int flags) {
    int descriptor;
    do descriptor = ::openat(folder, path, flags);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

}  // namespace hpcai500
