#include "parallel_for.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "signals_blocked.h"

namespace hpcai500 {
namespace {

class Job {
  public:
    Job(std::int64_t count, const std::function<void(std::int64_t)>& work) : count_(count), work_(work) {}

    /// Takes indices until none is left.
    void take_part() noexcept {
        try {
            for (std::int64_t index; (index = next_.fetch_add(1)) < count_;) work_(index);
        } catch (...) {
            next_ = count_;
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
        }
    }

    /// To be called when nobody takes part any more.
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
class WorkerPool {
  public:
    void run(Job& job, int helpers) {
        if (helpers < 1 || forked()) return job.take_part();
        const std::unique_lock busy(busy_, std::try_to_lock);
        if (!busy) return job.take_part();
        if (workers_ < helpers) {
            const SignalsBlocked blocked;
            for (; workers_ < helpers; ++workers_) std::thread([this] { serve(); }).detach();
        }
        {
            const std::lock_guard lock(mutex_);
            job_ = &job;
            places_ = helpers;
        }
        work_arrived_.notify_all();
        job.take_part();
        // A worker that has not woken by now is not waited for.
        std::unique_lock lock(mutex_);
        job_ = nullptr;
        places_ = 0;
        work_done_.wait(lock, [this] { return at_work_ == 0; });
    }

  private:
    bool forked() const { return ::getpid() != process_; }

    [[noreturn]] void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            work_arrived_.wait(lock, [this] { return places_ > 0; });
            --places_;
            ++at_work_;
            Job& job = *job_;
            lock.unlock();
            job.take_part();
            lock.lock();
            if (--at_work_ == 0) work_done_.notify_one();
        }
    }

    const pid_t process_ = ::getpid();
    std::mutex busy_;  // held by the caller whose job the workers do
    int workers_ = 0;  // threads that serve; changed under busy_
    std::mutex mutex_;
    std::condition_variable work_arrived_, work_done_;
    Job* job_ = nullptr;
    int places_ = 0;   // how many workers may still join the job
    int at_work_ = 0;  // how many have joined and not finished
};

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& work) {
    // At exit, other threads may be inside: it stays as it is, and its threads end with the process.
    static WorkerPool& pool = *new WorkerPool;
    Job job(count, work);
    pool.run(job, static_cast<int>(std::min<std::int64_t>(threads, count) - 1));
    job.rethrow();
}

}  // namespace hpcai500
