#pragma once

#include <atomic>

namespace pyllmcancel {

// The sticky flag of one request. Raised once, from any thread, with or without the GIL; read by the thread that
// decodes, after each node of a graph and inside large products. There is no way to lower it: a request that comes later has a flag of its own.
class CancelFlag {
  public:
    void raise() noexcept { raised_.store(true, std::memory_order_release); }

    bool raised() const noexcept { return raised_.load(std::memory_order_relaxed); }

  private:
    std::atomic<bool> raised_{false};
};

} // namespace pyllmcancel
