#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace pyllmcancel::platform {

// As condition_variable::wait(), which GCC 12 moved into its library: a wheel that calls it would not run on older systems.
template <typename Predicate>
void wait(std::condition_variable & condition, std::unique_lock<std::mutex> & lock, Predicate holds) {
    while (!condition.wait_for(lock, std::chrono::hours(1), holds)) {
    }
}

} // namespace pyllmcancel::platform
