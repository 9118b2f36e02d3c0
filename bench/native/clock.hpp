#pragma once

#include <chrono>
#include <cstdint>

namespace probe {

// The clock of Python's time.perf_counter_ns() on Linux, so that times from both sides can be subtracted.
inline int64_t now_ns() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

} // namespace probe
