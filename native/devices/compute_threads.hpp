#pragma once

#include "devices/core_times.hpp"
#include "devices/thread_policy.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

struct ggml_threadpool;

namespace pyllmcancel {

// The threads that a context computes on: at most `most` of them, the caller included. With `adapts`, ThreadPolicy
// decides how many each step has, by the free cores. All are started at once: ggml ends the process over a thread that
// cannot be started. There are several pools because the threads of a pool that a step does not use spin all the same,
// and slow down the threads that it uses.
class ComputeThreads {
  public:
    // Throws ContextError.
    ComputeThreads(int32_t most, bool adapts);

    // Called before each step, by the thread that computes it. Returns whether pool() and n_threads() have changed.
    bool adapt();

    ggml_threadpool * pool() const noexcept;

    // May be called from any thread.
    int32_t n_threads() const noexcept { return n_threads_.load(std::memory_order_relaxed); }

    // Lets them sleep until the next step; between steps they spin.
    void rest() noexcept;

    // For a forked child, which has none of the threads: joining them would never end.
    void leak() noexcept;

  private:
    struct FreePool {
        void operator()(ggml_threadpool * pool) const noexcept;
    };
    using Pool = std::unique_ptr<ggml_threadpool, FreePool>;

    static Pool make_pool(int32_t n_threads, bool spins);
    void take_reading();

    int32_t most_;
    Pool all_;
    Pool some_; // null where there is nothing between one and all
    Pool one_;  // null without adapting, as is some_
    std::atomic<int32_t> n_threads_;
    // Used by the thread that computes only.
    std::optional<ThreadPolicy> policy_; // without one the number is fixed
    std::optional<CoreClock> clock_;
};

} // namespace pyllmcancel
