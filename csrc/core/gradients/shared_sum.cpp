#include "shared_sum.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

namespace hpcai500 {

// The file begins with it. All zeros is how it starts.
struct SharedSum::Header {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> turn;  ///< how often all have met; what ranks sleep on
    alignas(64) std::atomic<std::uint32_t> closed;
};

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share it");

constexpr std::size_t page = 4096;

[[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(what + ": " + std::generic_category().message(errno));
}

std::size_t size_of_file(int ranks) {
    return page + (static_cast<std::size_t>(ranks) + 1) * SharedSum::slot_values * sizeof(float);
}

// The lock that a rank holds on its own byte of the file, for as long as its process lives: whoever still
// waits for a rank whose byte is free waits for ever.
struct flock lock_of(int rank, short type) {
    struct flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
}

Descriptor open_shared(const std::string& path, int rank, int ranks) {
    if (ranks < 2 || ranks > SharedSum::most_ranks || rank < 0 || rank >= ranks)
        throw std::invalid_argument("rank must be one of 2 to " + std::to_string(SharedSum::most_ranks) +
                                    " ranks, got rank " + std::to_string(rank) + " of " +
                                    std::to_string(ranks));
    Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | (rank == 0 ? O_CREAT | O_EXCL : 0),
                           S_IRUSR | S_IWUSR));
    if (file.value() < 0) fail(path);
    const auto bytes = static_cast<off_t>(size_of_file(ranks));
    if (rank == 0) {
        // Not only a size: where memory is short, writing would kill the process.
        errno = ::posix_fallocate(file.value(), 0, bytes);
        if (errno != 0) fail(path);
    }
    struct stat status;
    if (::fstat(file.value(), &status) != 0) fail(path);
    if (status.st_size != bytes)
        throw std::runtime_error(path + ": not of " + std::to_string(ranks) + " ranks");
    struct flock lock = lock_of(rank, F_WRLCK);
    if (::fcntl(file.value(), F_OFD_SETLK, &lock) != 0) fail(path);
    return file;
}

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t while_it_is, timespec longest) {
    ::syscall(SYS_futex, &word, FUTEX_WAIT, while_it_is, &longest, nullptr, 0);
}
void wake_all(std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

SharedSum::SharedSum(const std::string& path, int rank, int ranks)
    : rank_(rank), ranks_(ranks), file_(open_shared(path, rank, ranks)), bytes_(size_of_file(ranks)) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.value(), 0);
    if (memory == MAP_FAILED) fail(path);
    header_ = static_cast<Header*>(memory);
}

SharedSum::~SharedSum() {
    close();
    ::munmap(header_, bytes_);
}

void SharedSum::close() {
    header_->closed.store(1);
    // Sleepers look at it when they wake up.
    wake_all(header_->turn);
}

float* SharedSum::slot(int rank) const {
    auto* const first = reinterpret_cast<std::uint8_t*>(header_) + page;
    return reinterpret_cast<float*>(first) + static_cast<std::size_t>(rank) * slot_values;
}

void SharedSum::all_reduce(std::span<float> values) {
    const auto ranks = static_cast<std::size_t>(ranks_), rank = static_cast<std::size_t>(rank_);
    for (std::size_t begin = 0; begin < values.size(); begin += slot_values) {
        const auto part = values.subspan(begin, std::min(slot_values, values.size() - begin));
        std::memcpy(slot(rank_), part.data(), part.size_bytes());
        wait_for_all();
        // A share begins at a line of 64 bytes, which only one rank writes.
        constexpr std::size_t line = 16;
        const std::size_t lines = (part.size() + line - 1) / line;
        const std::size_t from = std::min(part.size(), lines * rank / ranks * line);
        const std::size_t to = std::min(part.size(), lines * (rank + 1) / ranks * line);
        float* const sum = sums();
        const float *const first = slot(0), *const second = slot(1);
        for (std::size_t i = from; i < to; ++i) sum[i] = first[i] + second[i];
        for (int other = 2; other < ranks_; ++other) {
            const float* const next = slot(other);
            for (std::size_t i = from; i < to; ++i) sum[i] += next[i];
        }
        wait_for_all();
        // The next sums are written only after all ranks have met again.
        std::memcpy(part.data(), sum, part.size_bytes());
    }
}

void SharedSum::wait_for_all() {
    const std::uint32_t turn = header_->turn.load();
    if (header_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
        header_->arrived.store(0);
        header_->turn.store(turn + 1);
        wake_all(header_->turn);
        return;
    }
    // Short of the time that sleeping and waking take.
    constexpr int looks = 200;
    for (int i = 0; i < looks; ++i) {
        if (header_->turn.load(std::memory_order_acquire) != turn) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    constexpr timespec longest{0, 100'000'000};
    while (header_->turn.load(std::memory_order_acquire) == turn) {
        sleep_on(header_->turn, turn, longest);
        if (header_->turn.load(std::memory_order_acquire) == turn) check_others();
    }
}

void SharedSum::check_others() const {
    if (header_->closed.load() != 0) throw std::runtime_error("another rank has left");
    for (int other = 0; other < ranks_; ++other) {
        if (other == rank_) continue;
        struct flock lock = lock_of(other, F_WRLCK);
        if (::fcntl(file_.value(), F_OFD_GETLK, &lock) != 0) fail("locks of shared memory");
        if (lock.l_type == F_UNLCK) {
            header_->closed.store(1);
            wake_all(header_->turn);
            throw std::runtime_error("rank " + std::to_string(other) + " of this host has ended");
        }
    }
}

}  // namespace hpcai500
