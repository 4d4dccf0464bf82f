#include "file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "descriptor.h"
#include "failure.h"

namespace hpcai500 {
namespace {

[[noreturn]] void unreadable(const char* action, int code) {
    throw DecodeError(FailureKind::unreadable,
                      std::string(action) + ": " + std::generic_category().message(code));
}

}  // namespace

void PathTable::add(std::string_view path) {
    if (path.empty()) throw std::invalid_argument("path " + std::to_string(size()) + " is empty");
    if (path.find('\0') != std::string_view::npos)
        throw std::invalid_argument("path " + std::to_string(size()) + " has a zero byte inside");
    letters_.insert(letters_.end(), path.begin(), path.end());
    letters_.push_back('\0');
    ends_.push_back(letters_.size());
}

Folder::Folder(const std::string& path)
    : descriptor_(open_retrying(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0)
        throw std::system_error(errno, std::generic_category(), "cannot open the folder " + path);
}

Folder::~Folder() {
    ::close(descriptor_);
}

std::span<const std::uint8_t> Folder::read(const char* path, GrowBuffer<std::uint8_t>& buffer) const {
    // Opening a pipe without a writer would wait for ever.
    const Descriptor file(open_retrying(descriptor_, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.value() < 0) unreadable("cannot open the file", errno);
    struct stat status{};
    if (::fstat(file.value(), &status) != 0) unreadable("cannot examine the file", errno);
    if (!S_ISREG(status.st_mode)) throw DecodeError(FailureKind::unreadable, "not a regular file");
    if (status.st_size > most_bytes)
        throw DecodeError(FailureKind::unreadable, "the file has " + std::to_string(status.st_size) +
                                                       " bytes; the limit for an image is " +
                                                       std::to_string(most_bytes));
    const auto size = static_cast<std::size_t>(status.st_size);
    std::uint8_t* bytes = buffer.reserve(size + 1);
    std::size_t done = 0;
    while (done < size) {
        const ssize_t got = ::pread(file.value(), bytes + done, size - done, static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) unreadable("cannot read the file", errno);
        if (got == 0) break;  // it shrank under us: the decoder will say that it is truncated
        done += static_cast<std::size_t>(got);
    }
    return {bytes, done};
}

}  // namespace hpcai500
