// Why an image could not be made: kinds that a caller treats differently, and a sentence for a person.
#pragma once

#include <stdexcept>
#include <string>

namespace hpcai500 {

enum class FailureKind {
    unsupported,  ///< no JPEG, or a kind of JPEG that libjpeg-turbo does not read: another decoder may
    truncated,    ///< the data ends before the pixels that are needed
    unreadable,   ///< the file cannot be opened or read
    corrupt,      ///< a JPEG that breaks the format's rules, or demands absurd resources
    memory,  ///< no memory is left: nothing is said of the file. std::bad_alloc where one image is decoded
};

constexpr const char* name(FailureKind kind) {
    switch (kind) {
        case FailureKind::unsupported:
            return "unsupported";
        case FailureKind::truncated:
            return "truncated";
        case FailureKind::unreadable:
            return "unreadable";
        case FailureKind::corrupt:
            return "corrupt";
        case FailureKind::memory:
            return "memory";
    }
    return "corrupt";
}

class DecodeError : public std::runtime_error {
  public:
    DecodeError(FailureKind kind, const std::string& reason) : std::runtime_error(reason), kind_(kind) {}
    FailureKind kind() const noexcept { return kind_; }

  private:
    FailureKind kind_;
};

}  // namespace hpcai500
