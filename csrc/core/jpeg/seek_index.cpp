#include "seek_index.h"

#include <libdeflate.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <tuple>

namespace hpcai500::baseline {
namespace {

// A 25th of a file: 4 %, with what an index says of it beside its points.
constexpr std::size_t file_bytes_to_one = 25, bytes_beside = 24 + SeekPoints::header_bytes;
// Closer points would save the passing of fewer MCUs than a jump takes time.
constexpr int least_interval = 4;

}  // namespace

SeekPoints::SeekPoints(std::span<const std::uint8_t> packed) {
    if (packed.size() < header_bytes) return;
    const std::uint32_t interval = load_little<std::uint32_t>(packed.data());
    if (interval == 0 || interval > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) return;
    interval_ = static_cast<int>(interval);
    packed_ = packed;
    stored_ = packed.subspan(header_bytes);
}

bool SeekPoints::suit(int mcus, int restart_interval) const {
    if (restart_interval > 0 && interval_ % restart_interval != 0) return false;
    return stored_.size() == static_cast<std::size_t>(at_or_behind(mcus)) * point_bytes;
}

SeekPoint SeekPoints::operator[](int number) const {
    if (number == 0) return {};
    const std::uint8_t* at = stored_.data() + static_cast<std::size_t>(number - 1) * point_bytes;
    SeekPoint point{load_little<std::uint32_t>(at), {}};
    for (int c = 0; c < 3; ++c)
        point.predictors[c] = static_cast<std::int16_t>(load_little<std::uint16_t>(at + 4 + 2 * c));
    return point;
}

int seek_interval(std::size_t file_bytes, int mcus, int restart_interval) {
    const std::size_t room = file_bytes / file_bytes_to_one;
    const std::size_t points =
        room < bytes_beside + SeekPoints::point_bytes ? 1 : (room - bytes_beside) / SeekPoints::point_bytes;
    const auto enough = static_cast<int>((static_cast<std::size_t>(mcus) + points - 1) / points);
    const int interval = std::max(least_interval, enough);
    if (restart_interval == 0) return interval;
    return (interval + restart_interval - 1) / restart_interval * restart_interval;
}

void append_point(std::vector<std::uint8_t>& packed, const SeekPoint& point) {
    append_little(packed, point.bit);
    for (const std::int16_t predictor : point.predictors)
        append_little(packed, static_cast<std::uint16_t>(predictor));
}

}  // namespace hpcai500::baseline

namespace hpcai500 {

using namespace seek_format;

namespace {

constexpr std::size_t waiting_bytes = std::size_t{1} << 20;

[[noreturn]] void failed(const std::string& action) {
    throw std::system_error(errno, std::generic_category(), action);
}

Descriptor open_file(const std::string& path) {
    // Opening a pipe without a writer would wait for ever.
    Descriptor file = open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK);
    if (file.value() < 0) failed("cannot open " + path);
    return file;
}

Descriptor make_file(const std::string& path) {
    Descriptor file = open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_EXCL);
    if (file.value() < 0) failed("cannot make " + path);
    return file;
}

struct stat examine(const Descriptor& file, const std::string& path) {
    struct stat status{};
    if (::fstat(file.value(), &status) != 0) failed("cannot examine " + path);
    return status;
}

// False where the file ends before.
bool fill(const Descriptor& file, std::uint64_t offset, std::span<std::uint8_t> to) {
    const std::ptrdiff_t got = try_read_at(file.value(), offset, to);
    if (got < 0) failed("cannot read the seek index");
    return static_cast<std::size_t>(got) == to.size();
}

void write_at(const Descriptor& file, std::uint64_t offset, std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::pwrite(file.value(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) failed("cannot write the seek index");
        offset += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

}  // namespace

std::uint32_t seek_format::crc(std::span<const std::uint8_t> bytes, std::uint32_t before) {
    return libdeflate_crc32(before, bytes.data(), bytes.size());
}

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
    const struct stat status = examine(file_, path);
    if (!S_ISREG(status.st_mode)) throw SeekIndexError("is not a file");
    std::uint8_t header[header_bytes];
    if (!fill(file_, 0, header)) throw SeekIndexError("is truncated");
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
    if (!fill(file_, points_end_, table_)) throw SeekIndexError("is truncated");
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
        if (!fill(file_, found.offset, bytes)) return Answer::damaged;
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
    const struct stat status = examine(open_file(path), path);
    const auto identity = [](const struct stat& of) {
        return std::tuple(of.st_dev, of.st_ino, of.st_size, of.st_mtim.tv_sec, of.st_mtim.tv_nsec);
    };
    if (auto open = last.lock(); open && identity(status) == identity(last_status)) return open;
    auto opened = std::make_shared<const SeekIndex>(path);
    last = opened;
    last_status = status;
    return opened;
}

SeekIndexWriter::SeekIndexWriter(const std::string& path) : file_(make_file(path)), written_(header_bytes) {}

void SeekIndexWriter::put(std::span<const std::uint8_t> bytes) {
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
    if (waiting_.size() >= waiting_bytes) flush();
}

void SeekIndexWriter::flush() {
    write_at(file_, written_, waiting_);
    written_ += waiting_.size();
    waiting_.clear();
}

void SeekIndexWriter::check_unfinished() const {
    if (finished_) throw std::runtime_error("the seek index is finished");
}

void SeekIndexWriter::add(const SeekKey& key, std::span<const std::uint8_t> points) {
    const std::lock_guard lock(mutex_);
    check_unfinished();
    if (added_.size() == most_files)
        throw std::system_error(EFBIG, std::generic_category(),
                                "a seek index has room for " + std::to_string(most_files) + " files");
    Added added{key, written_ + waiting_.size(), 0, 0};
    if (!points.empty()) {
        added.checksum = checksum_of(key, points);
        added.length = static_cast<std::uint32_t>(checksum_bytes + points.size());
        std::vector<std::uint8_t> checksum;
        append_little(checksum, added.checksum);
        put(checksum);
        put(points);
    }
    added_.push_back(added);
}

// Of files with the same content only one; where the same key stands for different ones, none has points.
std::vector<std::uint8_t> SeekIndexWriter::packed_table() {
    std::stable_sort(added_.begin(), added_.end(),
                     [](const Added& a, const Added& b) { return a.key < b.key; });
    std::vector<std::uint8_t> table;
    for (std::size_t i = 0; i < added_.size();) {
        Added entry = added_[i];
        for (; i < added_.size() && added_[i].key == entry.key; ++i)
            if (added_[i].length != entry.length || added_[i].checksum != entry.checksum) entry.length = 0;
        append_little(table, entry.key.checksum);
        append_little(table, entry.key.bytes);
        append_little(table, entry.length == 0 ? std::uint64_t{0} : entry.offset);
        append_little(table, entry.length);
    }
    return table;
}

std::uint64_t SeekIndexWriter::finish() {
    const std::lock_guard lock(mutex_);
    check_unfinished();
    finished_ = true;
    flush();
    const std::vector<std::uint8_t> table = packed_table();
    write_at(file_, written_, table);
    std::vector<std::uint8_t> header(magic.begin(), magic.end());
    append_little(header, version);
    append_little(header, crc(table));
    append_little(header, written_);
    append_little(header, static_cast<std::uint32_t>(table.size() / SeekIndex::entry_bytes));
    append_little(header, crc(header));
    write_at(file_, 0, header);
    // A network's file system tells only now that there was no room.
    if (::fdatasync(file_.value()) != 0) failed("cannot write the seek index");
    return written_ + table.size();
}

}  // namespace hpcai500
