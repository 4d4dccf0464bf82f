// Native threads: independent pieces of work for whoever asks (parallel_for), and threads of one object's
// own.
#pragma once

#include <cfenv>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcai500 {

/// While it lives, this thread rounds to nearest and keeps subnormal numbers. The caller may have asked its
/// own arithmetic for less (torch.set_flush_denormal).
class DefaultArithmetic {
  public:
    DefaultArithmetic() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultArithmetic() { std::fesetenv(&before_); }
    DefaultArithmetic(const DefaultArithmetic&) = delete;
    DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

  private:
    std::fenv_t before_;
};

/// Calls work(index) once for each index in [0, count), on up to `threads` threads of which the caller is
/// one, in the default arithmetic, and returns when all are done. Which thread does which index, and
/// when, is not specified; where no further thread can be started, those that are there do all. The threads
/// are ours: torch's OpenMP runtime is inside its wheel, and linking the system's would bring a second one,
/// with threads of its own, into the process.
///
/// The threads are kept for the next call. While they are at work for another caller (or this call is made
/// from inside `work`, or in a child of fork(), where they do not exist), the caller does all by itself.
/// The first exception that `work` throws is thrown here; indices not begun by then are left out.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& work);

/// Threads that one object starts, and joins before it ends. They block all signals, which are the main
/// thread's: Python's handlers run there, and a worker that took Ctrl-C would delay it. Their
/// arithmetic is the default.
class OwnThreads {
  public:
    /// Starts threads that call work(their number). Throws std::system_error; those that have started by then
    /// are to be ended and joined all the same. `name` has at most 15 letters.
    void start(std::size_t count, const char* name, const std::function<void(std::size_t)>& work);
    /// May be called twice, also from several threads.
    void join();

  private:
    std::mutex joining_;
    std::vector<std::thread> threads_;
};

/// Throws std::invalid_argument for less than one.
std::size_t checked_threads(int threads);

enum class JobEnd { done, stopped, closed };

/// Threads that share the pieces of one job at a time. run() may be called from several threads: their jobs
/// follow one another. Not to be used after fork(): the child has no threads.
class WorkerPool {
  public:
    /// Work on one piece: its number, and that of the thread (to find memory of its own).
    using Work = std::function<void(std::size_t piece, std::size_t worker)>;
    /// Asked about every tenth of a second on the thread that waits; true ends the job early.
    using Stop = std::function<bool()>;

    /// Throws as checked_threads() and OwnThreads::start().
    WorkerPool(int threads, const char* name);
    ~WorkerPool() { close(); }
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    std::size_t size() const { return size_; }

    /// Does pieces 0..count and waits for them. Pieces are begun in order; after one has thrown, none is
    /// begun any more, and of several exceptions that of the lowest piece is thrown here: the same one for
    /// every number of threads.
    JobEnd run(std::size_t count, const Work& work, const Stop& stop);

    /// Ends a job that is running after the pieces that have begun, and the threads. May be called twice.
    void close();

  private:
    struct Job;
    void serve(std::size_t worker);
    void do_pieces(Job& job, std::size_t worker);
    template <class Ready>
    bool wait_until(std::unique_lock<std::mutex>& lock, const Stop& stop, Ready ready);

    const std::size_t size_;
    std::mutex mutex_;
    std::condition_variable job_begins_, job_ends_;
    Job* job_ = nullptr;
    std::uint64_t jobs_begun_ = 0;
    bool closed_ = false;
    OwnThreads threads_;
};

}  // namespace hpcai500
