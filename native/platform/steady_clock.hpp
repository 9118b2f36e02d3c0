#pragma once

#include <chrono>
#include <cstdint>

namespace pyllmcancel {

// Microseconds on a clock that never goes back.
inline int64_t now_us() noexcept {
    using namespace std::chrono;
    return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

} // namespace pyllmcancel
