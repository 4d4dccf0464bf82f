#include "shared_sum.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace hpcai500 {

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share them");

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

// The open files of this process. A child of fork() has copies, which would keep the locks of a rank whose
// process has ended: it closes them. Mappings keep a file open, too, and are not inherited (MADV_DONTFORK).
struct OpenFiles {
    std::mutex mutex;  // held while a file is opened, mapped or closed, and by fork()
    std::vector<int> files;

    // Never destroyed: at exit, other threads may use it.
    static OpenFiles& get() {
        static OpenFiles& open = *new OpenFiles;
        static const int registered = ::pthread_atfork([] { open.mutex.lock(); }, [] { open.mutex.unlock(); },
                                                       [] {
                                                           for (const int file : open.files) ::close(file);
                                                           open.files.clear();
                                                           open.mutex.unlock();
                                                       });
        if (registered != 0) throw std::runtime_error("no memory for a handler of fork()");
        return open;
    }
};

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

}  // namespace

// As wait_for_all() wants them. The locks tell who is there.
class SharedSum::Others {
  public:
    // Short of the time that sleeping and waking take.
    static constexpr int looks = 200;

    explicit Others(SharedSum& own) : own_(own) {}
    void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    void sleep(std::uint32_t turn) {
        constexpr timespec longest{0, 100'000'000};
        ::syscall(SYS_futex, &own_.words_->turn, FUTEX_WAIT, turn, &longest, nullptr, 0);
    }
    void wake() { ::syscall(SYS_futex, &own_.words_->turn, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
    bool is_there(int rank) {
        struct flock lock = lock_of(rank, F_WRLCK);
        if (::fcntl(own_.file_.value(), F_OFD_GETLK, &lock) != 0) {
            const int reason = errno;
            own_.close();
            errno = reason;
            fail("locks of shared memory");
        }
        return lock.l_type != F_UNLCK;
    }

  private:
    SharedSum& own_;
};

SharedSum::SharedSum(const std::string& path, int rank, int ranks)
    : rank_(rank), ranks_(ranks), bytes_(size_of_file(ranks)), file_(-1), words_(nullptr) {
    OpenFiles& open = OpenFiles::get();
    const std::lock_guard lock(open.mutex);
    open.files.reserve(open.files.size() + 1);
    file_ = open_shared(path, rank, ranks);
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.value(), 0);
    if (memory == MAP_FAILED) fail(path);
    words_ = static_cast<BarrierWords<Word>*>(memory);
    if (::madvise(memory, bytes_, MADV_DONTFORK) != 0) {
        const int reason = errno;
        ::munmap(memory, bytes_);
        errno = reason;
        fail(path);
    }
    open.files.push_back(file_.value());
}

SharedSum::~SharedSum() {
    close();
    OpenFiles& open = OpenFiles::get();
    const std::lock_guard lock(open.mutex);
    ::munmap(words_, bytes_);
    std::erase(open.files, file_.value());
    const Descriptor closed(std::move(file_));
}

void SharedSum::close() {
    words_->closed.store(1);
    // Sleepers look at it when they wake up.
    Others(*this).wake();
}

float* SharedSum::slot(int rank) const {
    auto* const first = reinterpret_cast<std::uint8_t*>(words_) + page;
    return reinterpret_cast<float*>(first) + static_cast<std::size_t>(rank) * slot_values;
}

void SharedSum::all_reduce(std::span<float> values) {
    const auto ranks = static_cast<std::size_t>(ranks_), rank = static_cast<std::size_t>(rank_);
    Others others(*this);
    for (std::size_t begin = 0; begin < values.size(); begin += slot_values) {
        const auto part = values.subspan(begin, std::min(slot_values, values.size() - begin));
        std::memcpy(slot(rank_), part.data(), part.size_bytes());
        wait_for_all(*words_, rank_, ranks_, others);
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
        wait_for_all(*words_, rank_, ranks_, others);
        // The next sums are written only after all ranks have met again.
        std::memcpy(part.data(), sum, part.size_bytes());
    }
}

}  // namespace hpcai500
