#include "files.h"

#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "failure.h"

namespace hpcai500 {
namespace {

[[noreturn]] void unreadable(const char* action) {
    throw DecodeError(FailureKind::unreadable,
                      std::string(action) + ": " + std::generic_category().message(errno));
}

struct stat examine(int file) {
    struct stat status{};
    if (::fstat(file, &status) != 0) unreadable("cannot examine the file");
    return status;
}

}  // namespace

Descriptor open_retrying(const char* path, int flags, int folder) {
    int descriptor;
    // The mode is for a file that is made.
    do descriptor = ::openat(folder, path, flags | O_CLOEXEC, 0666);
    while (descriptor < 0 && errno == EINTR);
    return Descriptor(descriptor);
}

Descriptor open_regular(const char* path, int folder) {
    // Opening a pipe without a writer would wait for ever.
    Descriptor file = open_retrying(path, O_RDONLY | O_NONBLOCK, folder);
    if (file.value() < 0) unreadable("cannot open the file");
    if (!S_ISREG(examine(file.value()).st_mode))
        throw DecodeError(FailureKind::unreadable, "not a regular file");
    return file;
}

std::uint64_t size_of(int file) {
    return static_cast<std::uint64_t>(examine(file).st_size);
}

std::size_t read_at(int file, std::uint64_t offset, std::span<std::uint8_t> to) {
    const std::ptrdiff_t got = try_read_at(file, offset, to);
    if (got < 0) unreadable("cannot read the file");
    return static_cast<std::size_t>(got);
}

std::ptrdiff_t try_read_at(int file, std::uint64_t offset, std::span<std::uint8_t> to) {
    std::size_t done = 0;
    while (done < to.size()) {
        const ssize_t got =
            ::pread(file, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += static_cast<std::size_t>(got);
    }
    return static_cast<std::ptrdiff_t>(done);
}

}  // namespace hpcai500
