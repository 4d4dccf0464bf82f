#include "worker_pool.h"

#include <pthread.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "signals_blocked.h"

namespace hpcai500 {
namespace {

constexpr std::chrono::milliseconds stop_interval{100};

std::size_t checked(int threads) {
    if (threads < 1)
        throw std::invalid_argument("threads must be at least 1, got " + std::to_string(threads));
    return static_cast<std::size_t>(threads);
}

}  // namespace

WorkerPool::WorkerPool(int threads, const char* name) : size_(checked(threads)) {
    threads_.reserve(size_);
    const SignalsBlocked blocked;
    try {
        for (std::size_t worker = 0; worker < size_; ++worker) {
            threads_.emplace_back([this, worker] { work(worker); });
            pthread_setname_np(threads_.back().native_handle(), name);
        }
    } catch (...) {
        close();
        throw;
    }
}

WorkerPool::~WorkerPool() {
    close();
}

// False when stop() or close() came before `ready`.
template <class Ready>
bool WorkerPool::wait_until(std::unique_lock<std::mutex>& lock, const Stop& stop, Ready ready) {
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
    Job job(count, work);
    job.active = size_;
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
    const std::lock_guard lock(closing_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void WorkerPool::fail(Job& job, std::size_t piece) {
    const std::lock_guard lock(mutex_);
    if (!job.failure || piece < job.failed_piece) {
        job.failure = std::current_exception();
        job.failed_piece = piece;
    }
    job.ended = true;
}

void WorkerPool::do_pieces(Job& job, std::size_t worker) {
    while (!job.ended) {
        const std::size_t piece = job.next.fetch_add(1);
        if (piece >= job.count) return;
        try {
            job.work(piece, worker);
        } catch (...) {
            fail(job, piece);
        }
    }
}

void WorkerPool::work(std::size_t worker) {
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
