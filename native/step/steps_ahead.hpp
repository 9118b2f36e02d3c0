#pragma once

#include "platform/platform.hpp"
#include "step/busy_guard.hpp"
#include "step/step_result.hpp"

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace pyllmcancel {

// Computes steps in a thread of its own, which begins the next one without waiting for its user to look at the last one's
// result: one step, and no more, is ahead of what the user has collected.
//
// A step's result is handed over when the user has come for it, and only then it is decided whether another begins. So the
// thread, which mostly computes, waits for a user who is slower than a step.
class StepsAhead {
  public:
    // Both are called by the thread. `compute` computes the present step. `advance`, after a step whose user wants another,
    // makes the next one the present one, and returns whether there is one.
    using Compute = std::function<StepResult()>;
    using Advance = std::function<bool(const StepResult &)>;

    // In a forked child, where the thread does not exist, it is leaked: joining would never end.
    struct Stop {
        void operator()(StepsAhead * steps) const noexcept;
    };
    using Owner = std::unique_ptr<StepsAhead, Stop>;

    // Starts the thread. Throws ContextError.
    static Owner start(Compute compute, Advance advance);

    StepsAhead(const StepsAhead &) = delete;
    StepsAhead & operator=(const StepsAhead &) = delete;

    // Computes the present step; another may follow. Throws what computing has thrown; then none follows. `busy` is kept
    // until there is no step whose result has not been collected.
    StepResult begin(std::unique_ptr<BusyGuard> busy);

    // Returns the result of the step that is ahead. `goes_on`: another may follow it. Throws as begin(), UsageError if
    // no step is ahead, and ContextBusy if another thread is in here.
    StepResult collect(bool goes_on);

  private:
    StepsAhead(Compute compute, Advance advance);
    ~StepsAhead(); // computes the present step to its end

    static void run(void * self);
    void work();
    bool hand_over(StepResult result, std::exception_ptr error);
    StepResult wait(std::unique_lock<std::mutex> & lock, bool goes_on);

    const Compute compute_;
    const Advance advance_;
    const long owner_pid_;
    std::mutex mutex_;
    std::condition_variable for_thread_;
    std::condition_variable for_user_;
    // All guarded by the mutex. Written by the user:
    std::unique_ptr<BusyGuard> busy_; // while a step computes, or is ahead
    bool wanted_ = false;  // a step, by begin()
    bool waiting_ = false; // in begin() or collect()
    bool goes_on_ = false;
    bool closing_ = false;
    // Written by the thread, emptied by the user:
    bool handed_over_ = false;
    StepResult result_;
    std::exception_ptr error_;
    platform::Thread * thread_; // last, for it uses all the others
};

} // namespace pyllmcancel
