#pragma once

#include "step/cancel_flag.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace probe {

// The outcome of a computation that was to be aborted. `latency_ns` runs from just before the flag was raised to the
// return of the call; it means nothing unless `aborted`.
struct AbortTiming {
    bool aborted = false;
    int64_t latency_ns = 0;
};

// Raises a flag from a thread of its own, as a server's event loop does. The thread sleeps until its moment: spinning, it
// would take a core from the computation that it is to interrupt.
class DelayedRaise {
  public:
    DelayedRaise(std::shared_ptr<pyllmcancel::CancelFlag> flag, int64_t delay_ns);
    ~DelayedRaise();
    DelayedRaise(const DelayedRaise &) = delete;
    DelayedRaise & operator=(const DelayedRaise &) = delete;

    // Ends the thread, at once if its moment has not come. The time of the raise, or 0 if there was none.
    int64_t finish();

  private:
    void run(int64_t delay_ns);

    std::shared_ptr<pyllmcancel::CancelFlag> flag_;
    std::mutex mutex_;
    std::condition_variable ending_;
    bool ended_ = false;    // under mutex_
    int64_t raised_at_ = 0; // written by the thread, read after it was joined
    std::thread thread_;    // last: it uses all of the above
};

} // namespace probe
