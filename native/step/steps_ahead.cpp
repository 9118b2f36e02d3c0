#include "step/steps_ahead.hpp"

#include "platform/errors.hpp"
#include "platform/waiting.hpp"

#include <utility>

namespace pyllmcancel {
namespace {

// llama.cpp and ggml build graphs recursively; some systems give a thread half a megabyte.
constexpr std::size_t STACK_BYTES = std::size_t{16} << 20;

} // namespace

void StepsAhead::Stop::operator()(StepsAhead * steps) const noexcept {
    if (platform::process_id() == steps->owner_pid_) {
        delete steps;
    }
}

StepsAhead::Owner StepsAhead::start(Compute compute, Advance advance) {
    return Owner(new StepsAhead(std::move(compute), std::move(advance)));
}

StepsAhead::StepsAhead(Compute compute, Advance advance)
    : compute_(std::move(compute)), advance_(std::move(advance)), owner_pid_(platform::process_id()),
      thread_(platform::start_thread(STACK_BYTES, run, this)) {
    if (thread_ == nullptr) {
        throw ContextError("the thread that computes steps ahead could not be started");
    }
}

StepsAhead::~StepsAhead() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        closing_ = true;
    }
    for_thread_.notify_one();
    platform::join_thread(thread_);
}

StepResult StepsAhead::begin(std::unique_ptr<BusyGuard> busy) {
    std::unique_lock<std::mutex> lock(mutex_);
    busy_ = std::move(busy);
    wanted_ = true;
    return wait(lock, true);
}

StepResult StepsAhead::collect(bool goes_on) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (waiting_) {
        throw ContextBusy();
    }
    if (!busy_) {
        throw UsageError("no step is ahead");
    }
    return wait(lock, goes_on);
}

StepResult StepsAhead::wait(std::unique_lock<std::mutex> & lock, bool goes_on) {
    goes_on_ = goes_on;
    waiting_ = true;
    for_thread_.notify_one();
    platform::wait(for_user_, lock, [this] { return handed_over_; });
    handed_over_ = false;
    waiting_ = false;
    if (error_ || !result_.ahead) {
        busy_.reset();
    }
    if (error_) {
        std::rethrow_exception(std::exchange(error_, nullptr));
    }
    return std::move(result_);
}

void StepsAhead::run(void * self) { static_cast<StepsAhead *>(self)->work(); }

void StepsAhead::work() {
    for (bool follows = false;;) {
        if (!follows) {
            std::unique_lock<std::mutex> lock(mutex_);
            platform::wait(for_thread_, lock, [this] { return wanted_ || closing_; });
            if (closing_) {
                return;
            }
            wanted_ = false;
        }
        StepResult result;
        std::exception_ptr error;
        try {
            result = compute_();
        } catch (...) {
            error = std::current_exception();
        }
        follows = hand_over(std::move(result), std::move(error)); // this thread keeps no reference
    }
}

// Returns whether another step follows.
bool StepsAhead::hand_over(StepResult result, std::exception_ptr error) {
    bool follows = false;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        platform::wait(for_thread_, lock, [this] { return (waiting_ && !handed_over_) || closing_; });
        if (closing_) {
            return false;
        }
        try {
            follows = !error && goes_on_ && advance_(result);
        } catch (...) {
            error = std::current_exception();
        }
        result.ahead = follows;
        result_ = std::move(result);
        error_ = std::move(error);
        handed_over_ = true;
    }
    for_user_.notify_one();
    return follows;
}

} // namespace pyllmcancel
