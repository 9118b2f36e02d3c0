#pragma once

#include "errors.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pyllmcancel {

// What llama_decode said. status_of() translates its return code, and nobody else does.
enum class StepStatus : int32_t {
    ok = 0,
    aborted = 1,        // rc 2
    no_room = 2,        // rc 1: no free cells for this batch; nothing was changed
    invalid = 3,        // rc -1
    failed_alloc = 4,   // rc -2
    failed_compute = 5, // rc -3 and anything unknown
};

inline StepStatus status_of(int32_t rc) noexcept {
    switch (rc) {
        case 0: return StepStatus::ok;
        case 1: return StepStatus::no_room;
        case 2: return StepStatus::aborted;
        case -1: return StepStatus::invalid;
        case -2: return StepStatus::failed_alloc;
        default: return StepStatus::failed_compute;
    }
}

inline int64_t now_us() noexcept {
    using namespace std::chrono;
    return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

// Marks a context busy for the length of a call, or refuses.
class Entry {
  public:
    explicit Entry(std::atomic<bool> & busy) : busy_(busy) {
        if (busy_.exchange(true, std::memory_order_acquire)) {
            throw ContextBusy();
        }
    }
    ~Entry() { busy_.store(false, std::memory_order_release); }
    Entry(const Entry &) = delete;
    Entry & operator=(const Entry &) = delete;

  private:
    std::atomic<bool> & busy_;
};

} // namespace pyllmcancel
