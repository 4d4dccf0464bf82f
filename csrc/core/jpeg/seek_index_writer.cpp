#include "seek_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/little_endian.h"
#include "seek_index_format.h"

namespace hpcai500 {
namespace {

using namespace seek_format;

constexpr std::size_t waiting_bytes = std::size_t{1} << 20;

[[noreturn]] void failed(const std::string& action) {
    throw std::system_error(errno, std::generic_category(), action);
}

Descriptor make_file(const std::string& path) {
    int file;
    do file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    while (file < 0 && errno == EINTR);
    if (file < 0) failed("cannot make " + path);
    return Descriptor(file);
}

void write_at(int file, std::uint64_t offset, std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) failed("cannot write the seek index");
        offset += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

}  // namespace

SeekIndexWriter::SeekIndexWriter(const std::string& path) : file_(make_file(path)), written_(header_bytes) {}

void SeekIndexWriter::put(std::span<const std::uint8_t> bytes) {
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
    if (waiting_.size() >= waiting_bytes) flush();
}

void SeekIndexWriter::flush() {
    write_at(file_.value(), written_, waiting_);
    written_ += waiting_.size();
    waiting_.clear();
}

void SeekIndexWriter::add(const SeekKey& key, std::span<const std::uint8_t> points) {
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
    flush();
    const std::vector<std::uint8_t> table = packed_table();
    write_at(file_.value(), written_, table);
    std::vector<std::uint8_t> header(magic.begin(), magic.end());
    append_little(header, version);
    append_little(header, crc(table));
    append_little(header, written_);
    append_little(header, static_cast<std::uint32_t>(table.size() / SeekIndex::entry_bytes));
    append_little(header, crc(header));
    write_at(file_.value(), 0, header);
    // A network's file system tells only now that there was no room.
    if (::fdatasync(file_.value()) != 0) failed("cannot write the seek index");
    return written_ + table.size();
}

}  // namespace hpcai500
