#pragma once

#include "platform/errors.hpp"

#include <atomic>

namespace pyllmcancel {

// Marks a context busy for the length of a call, or throws ContextBusy: a second thread must not enter it.
class BusyGuard {
  public:
    explicit BusyGuard(std::atomic<bool> & busy) : busy_(busy) {
        if (busy_.exchange(true, std::memory_order_acquire)) {
            throw ContextBusy();
        }
    }
    ~BusyGuard() { busy_.store(false, std::memory_order_release); }
    BusyGuard(const BusyGuard &) = delete;
    BusyGuard & operator=(const BusyGuard &) = delete;

  private:
    std::atomic<bool> & busy_;
};

} // namespace pyllmcancel
