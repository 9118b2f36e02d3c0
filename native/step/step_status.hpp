#pragma once

#include <cstdint>

namespace pyllmcancel {

// The status that llama_decode returned. Only status_of() knows its codes.
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

} // namespace pyllmcancel
