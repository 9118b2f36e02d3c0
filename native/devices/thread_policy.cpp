#include "devices/thread_policy.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

// The kernel counts idle time in hundredths of a second, for each core.
constexpr int64_t WINDOW_US = 100'000;
// A pause after which other programs may have started unnoticed.
constexpr int64_t STALE_US = 1'000'000;

// Fractions of a core. A busy program beside as many threads as there are cores takes half to two thirds of one: then a
// core is missing. A quarter now and then is no reason for a thread less.
constexpr double MISSING = 0.4;
constexpr double NEARLY = 0.25;

// How long there must have been idle cores before the number of threads grows.
constexpr int64_t SPARE_US = 200'000;
// After a time with too many threads, the number does not grow for this many times as long: intermittent load costs a
// third at most.
constexpr int64_t PATIENCE = 3;
constexpr int64_t MAX_PATIENCE_US = 10'000'000;

// When a request begins, its client or the event loop may be running, too.
constexpr int32_t SHORT_LIVED = 1;

} // namespace

bool ThreadPolicy::is_due(int64_t at) const noexcept { return !has_begun_ || at - last_.at >= WINDOW_US; }

bool ThreadPolicy::is_stale(int64_t at) const noexcept { return has_rested_ && at - last_.at >= STALE_US; }

void ThreadPolicy::take(const CoreTimes & now, int32_t n_crowded_out) noexcept {
    if (!is_due(now.at)) {
        return;
    }
    const bool first = !has_begun_;
    const bool stale = is_stale(now.at);
    const int64_t passed = now.at - last_.at;
    const double room = static_cast<double>(now.idle - last_.idle + now.own - last_.own) / static_cast<double>(passed);
    has_begun_ = true;
    has_rested_ = false;
    last_ = now;
    if (first) {
        spare_since_ = now.at;
        return;
    }
    if (n_threads_ > 1 && room < n_threads_ - MISSING) {
        n_threads_ = std::clamp(static_cast<int32_t>(room + 0.5), 1, n_threads_ - 1);
        spare_since_ = now.at;
        raise_after_ = stale ? 0 : now.at + std::min(PATIENCE * passed, MAX_PATIENCE_US);
    } else if (room < n_threads_ + 1 - NEARLY) {
        spare_since_ = now.at;
    } else if (now.at - spare_since_ >= SPARE_US && now.at >= raise_after_) {
        n_threads_ = std::min(static_cast<int32_t>(room + NEARLY), most_);
        spare_since_ = now.at;
    }
    if (stale && n_crowded_out > SHORT_LIVED) {
        n_threads_ = std::clamp(most_ - n_crowded_out, 1, n_threads_);
    }
}

} // namespace pyllmcancel
