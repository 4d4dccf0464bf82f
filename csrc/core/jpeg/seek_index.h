// A file beside a set of JPEG files: seek points of each, found by what is in the file and not by its name.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/descriptor.h"
#include "core/grow_buffer.h"
#include "core/jpeg/baseline/seek_points.h"

namespace hpcai500 {

/// Which file points belong to: the CRC-32 of its bytes, and how many they are.
struct SeekKey {
    std::uint32_t checksum, bytes;

    auto operator<=>(const SeekKey&) const = default;
};

/// Of a file of at most 4 GB; larger ones are no images (Folder::most_bytes).
SeekKey seek_key(std::span<const std::uint8_t> jpeg);

/// An index that cannot be used; the text says why, as "is truncated".
class SeekIndexError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// An index that is there: 20 bytes a file are held in memory, points are read when they are asked for. Read,
/// not mapped: a file that shrinks meanwhile is a damaged one. May be used by several threads.
class SeekIndex {
  public:
    /// Throws SeekIndexError, and std::system_error where the file cannot be read.
    explicit SeekIndex(const std::string& path);

    enum class Answer {
        unknown,  ///< no such file
        damaged,  ///< what is said of it is not what was written
        known,    ///< `points` has its points, or none, where it has none
    };
    /// `points` lie in `room`.
    Answer find(const SeekKey& key, GrowBuffer<std::uint8_t>& room, baseline::SeekPoints& points) const;

    std::size_t files() const { return table_.size() / entry_bytes; }

    static constexpr std::size_t entry_bytes = 20;

  private:
    struct Entry {
        SeekKey key;
        std::uint64_t offset;
        std::uint32_t length;
    };
    Entry entry(std::size_t number) const;

    Descriptor file_;
    std::uint64_t points_end_ = 0;
    std::vector<std::uint8_t> table_;
};

/// What became of an image where an index was given: points of it were used; it has none, or was none to use
/// them for; the index does not know it; or what the index says of it is false, and it was decoded without.
enum class SeekUse { used, without, unknown, false_points };

/// How many images became what.
struct SeekCounts {
    std::int64_t used = 0, unknown = 0, false_points = 0;

    void add(SeekUse use) {
        used += use == SeekUse::used ? 1 : 0;
        unknown += use == SeekUse::unknown ? 1 : 0;
        false_points += use == SeekUse::false_points ? 1 : 0;
    }
};

/// The index at `path`, which all that use it at the same time share. Throws as SeekIndex.
std::shared_ptr<const SeekIndex> open_seek_index(const std::string& path);

/// Writes an index. Same files in the same order make the same bytes.
class SeekIndexWriter {
  public:
    /// Makes the file, which must not be there. Throws std::system_error, as all functions.
    explicit SeekIndexWriter(const std::string& path);

    /// Adds a file; without points it is one that is known to have none.
    void add(const SeekKey& key, std::span<const std::uint8_t> points);
    /// Writes what makes it an index. Returns its bytes.
    std::uint64_t finish();

  private:
    struct Added {
        SeekKey key;
        std::uint64_t offset;
        std::uint32_t length, checksum;
    };
    void put(std::span<const std::uint8_t> bytes);
    void flush();
    std::vector<std::uint8_t> packed_table();

    Descriptor file_;
    std::vector<std::uint8_t> waiting_;
    std::uint64_t written_ = 0;
    std::vector<Added> added_;
};

}  // namespace hpcai500
