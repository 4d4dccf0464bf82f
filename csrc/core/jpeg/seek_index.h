// Seek points of JPEG files, where decoding can begin in the middle, and the file that keeps them: beside a
// set of images, found by what is in an image's file and not by its name.
//
// An index is a header, then the points of each file behind a checksum, then a table sorted by key.
//
//   header   "HPC5SEEK", version (4 bytes), CRC-32 of the table (4), where the table begins (8),
//            entries (4), CRC-32 of the header before this (4)
//   points   CRC-32 of key and points (4), points as baseline::SeekPoints has them
//   entry    CRC-32 of a file, its bytes (4 each), where its points begin (8), their bytes with the
//            checksum (4)
//
// All numbers have the least byte first. An entry whose points have 0 bytes is of a file that has none.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "core/grow_buffer.h"

namespace hpcai500::baseline {

/// Between two MCUs: where the next one's first code begins, and what the first DC differences behind it are
/// added to.
struct SeekPoint {
    /// From the beginning of the scan's data, as the file has it: stuffing and markers count.
    std::uint32_t bit = 0;
    std::int16_t predictors[3] = {};

    bool operator==(const SeekPoint&) const = default;
    std::size_t byte() const { return bit / 8; }
    int bits_used() const { return static_cast<int>(bit % 8); }
};

/// What bit of a scan's data a point can name.
inline constexpr std::size_t most_seekable_bytes = std::numeric_limits<std::uint32_t>::max() / 8;

/// The points of one scan, every `interval()` MCUs, read where they lie; nothing of them is known to be true.
///
/// Point i stands before MCU i * interval(). Point 0 is the scan's beginning, and not stored; the last one
/// stands behind the last MCU. In a scan with restart markers each of the others stands behind one:
/// predictors begin anew there, so that nothing would tell of false ones before. Packed: the interval in 4
/// bytes; and 10 bytes a point, its bit in 4 and its predictors in 2 each; all with the least byte first.
class SeekPoints {
  public:
    static constexpr std::size_t header_bytes = 4, point_bytes = 10;

    /// The beginning alone, for a scan of which nothing else is known.
    SeekPoints() = default;
    /// `packed` stays where it is as long as the points are used.
    explicit SeekPoints(std::span<const std::uint8_t> packed);

    /// Whether there are points beside the beginning.
    bool any() const { return !stored_.empty(); }
    /// Whether they can be those of a scan of `mcus` MCUs, with `restart_interval` (0: none) between markers.
    bool suit(int mcus, int restart_interval) const;
    int interval() const { return interval_; }
    std::span<const std::uint8_t> packed() const { return packed_; }

    /// Numbers of points: the last one that is not behind an MCU, and the first one that is not before it.
    int at_or_before(int mcu) const { return mcu / interval_; }
    int at_or_behind(int mcu) const { return mcu / interval_ + (mcu % interval_ != 0 ? 1 : 0); }
    SeekPoint operator[](int number) const;

  private:
    std::span<const std::uint8_t> packed_, stored_;
    int interval_ = std::numeric_limits<int>::max();
};

/// How many MCUs there should be from one point to the next in a file of `file_bytes` with `mcus` MCUs: at
/// least 4, and more where an index would have more than a 25th of the file; a multiple of
/// `restart_interval`, where that is not 0.
int seek_interval(std::size_t file_bytes, int mcus, int restart_interval);

/// Appends a point as SeekPoints has it.
void append_point(std::vector<std::uint8_t>& packed, const SeekPoint& point);

}  // namespace hpcai500::baseline

namespace hpcai500 {

/// Which file points belong to: the CRC-32 of its bytes, and how many they are.
struct SeekKey {
    std::uint32_t checksum, bytes;

    auto operator<=>(const SeekKey&) const = default;
};

/// Of a file of at most 4 GB; larger ones are no images (loader.cpp).
SeekKey seek_key(std::span<const std::uint8_t> jpeg);

namespace seek_format {

inline constexpr std::string_view magic = "HPC5SEEK";
inline constexpr std::uint32_t version = 1;
inline constexpr std::size_t header_bytes = 32, checksum_bytes = 4;
/// 336 MB of table; ImageNet has 1.3 million files.
inline constexpr std::uint32_t most_files = 1U << 24;

std::uint32_t crc(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);

/// The checksum before the points of a file.
std::uint32_t checksum_of(const SeekKey& key, std::span<const std::uint8_t> points);

}  // namespace seek_format

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
    void add(const SeekCounts& other) {
        used += other.used;
        unknown += other.unknown;
        false_points += other.false_points;
    }
};

/// The index at `path`, which all that use it at the same time share. Throws as SeekIndex.
std::shared_ptr<const SeekIndex> open_seek_index(const std::string& path);

/// Writes an index. Same files in the same order make the same bytes. May be used by several threads.
class SeekIndexWriter {
  public:
    /// Makes the file, which must not be there. Throws std::system_error, as all functions.
    explicit SeekIndexWriter(const std::string& path);

    /// Adds a file; without points it is one that is known to have none.
    void add(const SeekKey& key, std::span<const std::uint8_t> points);
    /// Writes what makes it an index: the last call. Returns its bytes. Both throw std::runtime_error
    /// afterwards.
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

    void check_unfinished() const;

    std::mutex mutex_;
    Descriptor file_;
    bool finished_ = false;
    std::vector<std::uint8_t> waiting_;
    std::uint64_t written_ = 0;
    std::vector<Added> added_;
};

}  // namespace hpcai500
