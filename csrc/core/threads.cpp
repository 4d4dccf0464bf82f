#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <system_error>

namespace hpcai500 {
namespace {

// While it lives, threads that are started inherit a mask without any signal.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

// The indices of one parallel_for().
class Indices {
  public:
    Indices(std::int64_t count, const std::function<void(std::int64_t)>& work) : count_(count), work_(work) {}

    // Takes indices until none is left.
    void take_part() noexcept {
        const DefaultArithmetic arithmetic;
        try {
            for (std::int64_t index; (index = next_.fetch_add(1)) < count_;) work_(index);
        } catch (...) {
            next_ = count_;
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
        }
    }

    // To be called when nobody takes part any more.
    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }

  private:
    const std::int64_t count_;
    const std::function<void(std::int64_t)>& work_;
    std::atomic<std::int64_t> next_{0};
    std::mutex mutex_;
    std::exception_ptr error_;
};

// Never destroyed: see parallel_for().
class SharedThreads {
  public:
    void run(Indices& indices, int helpers) {
        if (helpers < 1 || ::getpid() != process_) return indices.take_part();
        const std::unique_lock busy(busy_, std::try_to_lock);
        if (!busy) return indices.take_part();
        start(helpers);
        {
            const std::lock_guard lock(mutex_);
            indices_ = &indices;
            places_ = std::min(helpers, threads_);
        }
        work_arrived_.notify_all();
        indices.take_part();
        // A thread that has not woken by now is not waited for.
        std::unique_lock lock(mutex_);
        indices_ = nullptr;
        places_ = 0;
        work_done_.wait(lock, [this] { return at_work_ == 0; });
    }

  private:
    // As many threads as there shall be, or as many as there can be.
    void start(int threads) try {
        if (threads_ >= threads) return;
        const SignalsBlocked blocked;
        for (; threads_ < threads; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
        // A limit of threads or of memory. The caller always takes part.
    }

    [[noreturn]] void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            work_arrived_.wait(lock, [this] { return places_ > 0; });
            --places_;
            ++at_work_;
            Indices& indices = *indices_;
            lock.unlock();
            indices.take_part();
            lock.lock();
            if (--at_work_ == 0) work_done_.notify_one();
        }
    }

    const pid_t process_ = ::getpid();
    std::mutex busy_;  // held by the caller whose work the threads do
    int threads_ = 0;  // that serve; changed under busy_
    std::mutex mutex_;
    std::condition_variable work_arrived_, work_done_;
    Indices* indices_ = nullptr;
    int places_ = 0;   // how many threads may still join
    int at_work_ = 0;  // how many have joined and not finished
};

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& work) {
    // At exit, other threads may be inside: it stays as it is, and its threads end with the process.
    static SharedThreads& shared = *new SharedThreads;
    Indices indices(count, work);
    shared.run(indices, static_cast<int>(std::min<std::int64_t>(threads, count) - 1));
    indices.rethrow();
}

void OwnThreads::start(std::size_t count, const char* name, const std::function<void(std::size_t)>& work) {
    threads_.reserve(count);
    const SignalsBlocked blocked;
    for (std::size_t number = 0; number < count; ++number) {
        threads_.emplace_back([work, number] {
            const DefaultArithmetic arithmetic;
            work(number);
        });
        pthread_setname_np(threads_.back().native_handle(), name);
    }
}

void OwnThreads::join() {
    const std::lock_guard lock(joining_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

std::size_t checked_threads(int threads) {
    if (threads < 1)
        throw std::invalid_argument("threads must be at least 1, got " + std::to_string(threads));
    return static_cast<std::size_t>(threads);
}

struct WorkerPool::Job {
    const std::size_t count;
    const Work& work;
    std::size_t active;
    std::atomic<std::size_t> next{0};
    std::atomic<bool> ended{false};
    std::size_t failed_piece = 0;
    std::exception_ptr failure = {};
};

WorkerPool::WorkerPool(int threads, const char* name) : size_(checked_threads(threads)) {
    try {
        threads_.start(size_, name, [this](std::size_t worker) { serve(worker); });
    } catch (...) {
        close();
        throw;
    }
}

// False when stop() or close() came before `ready`.
template <class Ready>
bool WorkerPool::wait_until(std::unique_lock<std::mutex>& lock, const Stop& stop, Ready ready) {
    constexpr std::chrono::milliseconds stop_interval{100};
    while (!ready()) {
        if (closed_) return false;
        if (job_ends_.wait_until(lock, std::chrono::steady_clock::now() + stop_interval) ==
            std::cv_status::timeout) {
            // Not under the lock: it may wait for Python's, whose holder may be waiting for ours.
            lock.unlock();
            const bool stopped = stop();
            lock.lock();
            if (stopped) return false;
        }
    }
    return true;
}

JobEnd WorkerPool::run(std::size_t count, const Work& work, const Stop& stop) {
    std::unique_lock lock(mutex_);
    if (!wait_until(lock, stop, [&] { return job_ == nullptr; }) || closed_)
        return closed_ ? JobEnd::closed : JobEnd::stopped;
    Job job{count, work, size_};
    job_ = &job;
    ++jobs_begun_;
    job_begins_.notify_all();
    wait_until(lock, stop, [&] { return job.active == 0; });
    job.ended = true;
    job_ends_.wait(lock, [&] { return job.active == 0; });
    job_ = nullptr;
    job_ends_.notify_all();
    if (job.failure) std::rethrow_exception(job.failure);
    // Every piece that was begun has ended; close() may have kept the threads from beginning any.
    if (job.next >= count) return JobEnd::done;
    return closed_ ? JobEnd::closed : JobEnd::stopped;
}

void WorkerPool::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        if (job_ != nullptr) job_->ended = true;
    }
    job_begins_.notify_all();
    job_ends_.notify_all();
    threads_.join();
}

void WorkerPool::do_pieces(Job& job, std::size_t worker) {
    while (!job.ended) {
        const std::size_t piece = job.next.fetch_add(1);
        if (piece >= job.count) return;
        try {
            job.work(piece, worker);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!job.failure || piece < job.failed_piece) {
                job.failure = std::current_exception();
                job.failed_piece = piece;
            }
            job.ended = true;
        }
    }
}

void WorkerPool::serve(std::size_t worker) {
    std::uint64_t jobs_seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
        // A job that has begun waits for every thread, also while the pool is being closed.
        while (job_ == nullptr || jobs_begun_ == jobs_seen) {
            if (closed_) return;
            job_begins_.wait(lock);
        }
        jobs_seen = jobs_begun_;
        Job& job = *job_;
        lock.unlock();
        do_pieces(job, worker);
        lock.lock();
        if (--job.active == 0) job_ends_.notify_all();
    }
}

}  // namespace hpcai500
