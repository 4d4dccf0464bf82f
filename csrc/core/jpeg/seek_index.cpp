#include "seek_index.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <tuple>

#include "core/little_endian.h"
#include "seek_index_format.h"

namespace hpcai500 {
namespace {

using namespace seek_format;

Descriptor open_file(const std::string& path) {
    // Opening a pipe without a writer would wait for ever.
    Descriptor file(open_retrying(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.value() < 0) throw std::system_error(errno, std::generic_category(), "cannot open " + path);
    return file;
}

// False where the file ends before.
bool read_at(int file, std::uint64_t offset, std::span<std::uint8_t> to) {
    while (!to.empty()) {
        const ssize_t got = ::pread(file, to.data(), to.size(), static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw std::system_error(errno, std::generic_category(), "cannot read the seek index");
        if (got == 0) return false;
        offset += static_cast<std::uint64_t>(got);
        to = to.subspan(static_cast<std::size_t>(got));
    }
    return true;
}

struct stat examine(int file, const std::string& path) {
    struct stat status{};
    if (::fstat(file, &status) != 0)
        throw std::system_error(errno, std::generic_category(), "cannot examine " + path);
    return status;
}

}  // namespace

std::uint32_t seek_format::checksum_of(const SeekKey& key, std::span<const std::uint8_t> points) {
    std::vector<std::uint8_t> named;
    append_little(named, key.checksum);
    append_little(named, key.bytes);
    return crc(points, crc(named));
}

SeekKey seek_key(std::span<const std::uint8_t> jpeg) {
    return {crc(jpeg), static_cast<std::uint32_t>(jpeg.size())};
}

SeekIndex::SeekIndex(const std::string& path) : file_(open_file(path)) {
    const struct stat status = examine(file_.value(), path);
    if (!S_ISREG(status.st_mode)) throw SeekIndexError("is not a file");
    std::uint8_t header[header_bytes];
    if (!read_at(file_.value(), 0, header)) throw SeekIndexError("is truncated");
    if (std::memcmp(header, magic.data(), magic.size()) != 0) throw SeekIndexError("is no seek index");
    if (const auto found = load_little<std::uint32_t>(header + 8); found != version)
        throw SeekIndexError("is of another version of hpcai500 (format " + std::to_string(found) + ", not " +
                             std::to_string(version) + ")");
    constexpr std::size_t checked = header_bytes - checksum_bytes;
    if (crc({header, checked}) != load_little<std::uint32_t>(header + checked))
        throw SeekIndexError("is damaged");
    points_end_ = load_little<std::uint64_t>(header + 16);
    const auto files = load_little<std::uint32_t>(header + 24);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (files > most_files || points_end_ < header_bytes) throw SeekIndexError("is damaged");
    if (size < points_end_ || size - points_end_ < std::uint64_t{files} * entry_bytes)
        throw SeekIndexError("is truncated");
    table_.resize(files * entry_bytes);
    if (!read_at(file_.value(), points_end_, table_)) throw SeekIndexError("is truncated");
    if (crc(table_) != load_little<std::uint32_t>(header + 12)) throw SeekIndexError("is damaged");
}

SeekIndex::Entry SeekIndex::entry(std::size_t number) const {
    const std::uint8_t* at = table_.data() + number * entry_bytes;
    return {{load_little<std::uint32_t>(at), load_little<std::uint32_t>(at + 4)},
            load_little<std::uint64_t>(at + 8),
            load_little<std::uint32_t>(at + 16)};
}

SeekIndex::Answer SeekIndex::find(const SeekKey& key, GrowBuffer<std::uint8_t>& room,
                                  baseline::SeekPoints& points) const {
    std::size_t from = 0, until = files();
    while (from < until) {
        const std::size_t middle = from + (until - from) / 2;
        if (entry(middle).key < key)
            from = middle + 1;
        else
            until = middle;
    }
    if (from == files()) return Answer::unknown;
    const Entry found = entry(from);
    if (found.key != key) return Answer::unknown;
    points = {};
    if (found.length == 0) return Answer::known;
    // Points are a small part of their file: nobody makes us hold more than that.
    const bool inside = found.offset <= points_end_ && found.length <= points_end_ - found.offset;
    if (!inside || found.length < checksum_bytes || found.length > key.bytes) return Answer::damaged;
    const std::span<std::uint8_t> bytes{room.reserve(found.length), found.length};
    try {
        if (!read_at(file_.value(), found.offset, bytes)) return Answer::damaged;
    } catch (const std::system_error&) {
        // The image itself can be read: an index that cannot must not end the run.
        return Answer::damaged;
    }
    const auto packed = bytes.subspan(checksum_bytes);
    if (load_little<std::uint32_t>(bytes.data()) != checksum_of(key, packed)) return Answer::damaged;
    points = baseline::SeekPoints(packed);
    return points.any() ? Answer::known : Answer::damaged;
}

std::shared_ptr<const SeekIndex> open_seek_index(const std::string& path) {
    // Training and evaluation read the same one, whose table is large.
    static std::mutex mutex;
    // Not destroyed at exit, when another thread may be here.
    static auto& last = *new std::weak_ptr<const SeekIndex>;
    static struct stat last_status{};
    const std::lock_guard lock(mutex);
    const struct stat status = examine(open_file(path).value(), path);
    const auto identity = [](const struct stat& of) {
        return std::tuple(of.st_dev, of.st_ino, of.st_size, of.st_mtim.tv_sec, of.st_mtim.tv_nsec);
    };
    if (auto open = last.lock(); open && identity(status) == identity(last_status)) return open;
    auto opened = std::make_shared<const SeekIndex>(path);
    last = opened;
    last_status = status;
    return opened;
}

}  // namespace hpcai500
