// Native threads start with all signals blocked.
#pragma once

#include <signal.h>

namespace hpcai500 {

/// While it lives, threads that are started inherit a mask without any signal. Signals are the main thread's:
/// Python's handlers run there, and a worker that took Ctrl-C would delay it.
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

}  // namespace hpcai500
