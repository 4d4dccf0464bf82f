// Files below one folder, read whole by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grow_buffer.h"

namespace hpcai500 {

/// The paths of a data set, packed: a million small strings would cost more memory than their letters.
class PathTable {
  public:
    /// Throws std::invalid_argument when a path is empty or has a zero byte inside.
    void add(std::string_view path);
    std::size_t size() const { return ends_.size(); }
    const char* path(std::size_t index) const {
        return letters_.data() + (index == 0 ? 0 : ends_[index - 1]);
    }

  private:
    std::vector<char> letters_;
    std::vector<std::size_t> ends_;
};

/// An open folder. Files are named relative to it, so that a later chdir or a renamed parent changes nothing.
class Folder {
  public:
    /// No image file is larger; a path to something else (a video, a disk) ends here and not in the memory
    /// limit.
    static constexpr std::int64_t most_bytes = std::int64_t{1} << 30;

    /// Throws std::system_error when the folder cannot be opened.
    explicit Folder(const std::string& path);
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    /// The whole file, in `buffer`. Throws DecodeError (unreadable) with the system's reason.
    std::span<const std::uint8_t> read(const char* path, GrowBuffer<std::uint8_t>& buffer) const;

  private:
    int descriptor_;
};

}  // namespace hpcai500
