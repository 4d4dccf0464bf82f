// Native threads that share the pieces of one job at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcai500 {

enum class JobEnd { done, stopped, closed };

/// run() may be called from several threads: their jobs follow one another. Not to be used after fork(): the
/// child has no threads.
class WorkerPool {
  public:
    /// Work on one piece: its number, and that of the thread (to find memory of its own).
    using Work = std::function<void(std::size_t piece, std::size_t worker)>;
    /// Asked about every tenth of a second on the thread that waits; true ends the job early.
    using Stop = std::function<bool()>;

    /// Throws std::invalid_argument for less than one thread, and std::system_error. `name` has at most 15
    /// letters.
    WorkerPool(int threads, const char* name);
    ~WorkerPool();
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
    struct Job {
        Job(std::size_t pieces, const Work& function) : count(pieces), work(function) {}
        const std::size_t count;
        const Work& work;
        std::atomic<std::size_t> next{0};
        std::atomic<bool> ended{false};
        std::size_t active = 0;
        std::size_t failed_piece = 0;
        std::exception_ptr failure;
    };

    void work(std::size_t worker);
    void do_pieces(Job& job, std::size_t worker);
    void fail(Job& job, std::size_t piece);
    template <class Ready>
    bool wait_until(std::unique_lock<std::mutex>& lock, const Stop& stop, Ready ready);

    const std::size_t size_;
    std::mutex mutex_;
    std::condition_variable job_begins_, job_ends_;
    Job* job_ = nullptr;
    std::uint64_t jobs_begun_ = 0;
    bool closed_ = false;

    std::mutex closing_;
    std::vector<std::thread> threads_;
};

}  // namespace hpcai500
