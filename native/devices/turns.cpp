#include "devices/turns.hpp"

#include "platform/steady_clock.hpp"
#include "platform/waiting.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

// The least and the longest turn of an encoder for which a step waits.
constexpr int64_t SHORTEST_US = 2'000;
constexpr int64_t LONGEST_US = 100'000;

Turns::Kind other_than(Turns::Kind kind) { return kind == Turns::Kind::step ? Turns::Kind::part : Turns::Kind::step; }

} // namespace

void Turns::begin(Kind kind) {
    std::unique_lock<std::mutex> lock(mutex_);
    int & mine = n_waiting_[static_cast<int>(kind)];
    const int & others = n_waiting_[static_cast<int>(other_than(kind))];
    ++mine;
    platform::wait(changed_, lock, [&] { return !taken_ && (last_ != kind || others == 0); });
    --mine;
    taken_ = true;
    last_ = kind;
    began_us_ = now_us();
}

void Turns::end(Kind kind) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        taken_ = false;
        if (kind == Kind::step) {
            step_us_ = now_us() - began_us_;
        }
    }
    changed_.notify_all();
}

bool Turns::waits(Kind kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_waiting_[static_cast<int>(kind)] > 0;
}

bool Turns::is_over(Kind kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_waiting_[static_cast<int>(other_than(kind))] > 0 &&
           now_us() - began_us_ >= std::clamp(step_us_, SHORTEST_US, LONGEST_US);
}

void Turns::Turn::give_way() {
    if (turns_.is_over(kind_)) {
        turns_.end(kind_);
        turns_.begin(kind_);
    }
}

} // namespace pyllmcancel
