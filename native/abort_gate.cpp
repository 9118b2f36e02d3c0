#include "abort_gate.hpp"

namespace pyllmcancel {

bool worth_aborting(const StepCost & cost, int32_t n_tokens, int32_t n_surviving_tokens, double done) noexcept {
    return n_surviving_tokens == 0 || (1.0 - done) * cost.of(n_tokens) > cost.of(n_surviving_tokens);
}

void AbortGate::arm(StepCost cost, bool only_unanimous, uint32_t polls_expected) {
    members_.clear();
    cost_ = cost;
    only_unanimous_ = only_unanimous;
    polls_expected_ = polls_expected;
    polls_ = 0;
    n_tokens_ = 0;
    fired_ = false;
    spared_ = false;
    armed_ = true;
}

void AbortGate::add(const CancelFlag * flag, int32_t n_tokens) {
    members_.push_back({flag, n_tokens});
    n_tokens_ += n_tokens;
}

void AbortGate::disarm() {
    armed_ = false;
    members_.clear();
    trap_flag_.reset();
}

void AbortGate::raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag) {
    trap_poll_ = poll;
    trap_flag_ = std::move(flag);
}

void AbortGate::spring_trap() noexcept {
    if (trap_flag_ && polls_ == trap_poll_) {
        trap_flag_->raise();
    }
}

bool AbortGate::decide() noexcept {
    int32_t n_cancelled = 0;
    int32_t n_surviving_tokens = 0;
    for (const Member & member : members_) {
        if (member.flag->raised()) {
            ++n_cancelled;
        } else {
            n_surviving_tokens += member.n_tokens;
        }
    }
    if (n_cancelled == 0) {
        return false;
    }
    // Before any step has run to its end nobody knows how long one is: then only an unanimous abort is safe.
    const bool may_weigh = !only_unanimous_ && polls_expected_ > 0;
    const double done = may_weigh ? static_cast<double>(polls_) / polls_expected_ : 1.0;
    const bool abort =
        n_surviving_tokens == 0 || (may_weigh && worth_aborting(cost_, n_tokens_, n_surviving_tokens, done));
    spared_ = !abort;
    return abort;
}

bool AbortGate::poll(void * self) noexcept {
    auto & gate = *static_cast<AbortGate *>(self);
    ++gate.polls_;
    if (!gate.armed_) {
        return false;
    }
    gate.spring_trap();
    // Once fired, stay fired: a step that is split over several graphs must not start its next one.
    gate.fired_ = gate.fired_ || gate.decide();
    return gate.fired_;
}

} // namespace pyllmcancel
