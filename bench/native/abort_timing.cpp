#include "abort_timing.hpp"

#include "clock.hpp"

namespace probe {

DelayedRaise::DelayedRaise(std::shared_ptr<pyllmcancel::CancelFlag> flag, int64_t delay_ns)
    : flag_(std::move(flag)), thread_([this, delay_ns] { run(delay_ns); }) {}

DelayedRaise::~DelayedRaise() { finish(); }

void DelayedRaise::run(int64_t delay_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ending_.wait_for(lock, std::chrono::nanoseconds(delay_ns), [this] { return ended_; })) {
        return;
    }
    raised_at_ = now_ns();
    flag_->raise();
}

int64_t DelayedRaise::finish() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
    }
    ending_.notify_one();
    if (thread_.joinable()) {
        thread_.join();
    }
    return raised_at_;
}

} // namespace probe
