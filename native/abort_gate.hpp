#pragma once

#include "cancel_flag.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// What a step of n tokens costs, in any unit of time: fixed + per_token * n.
struct StepCost {
    double fixed = 0.0;
    double per_token = 1.0;

    double of(int32_t n_tokens) const noexcept { return n_tokens > 0 ? fixed + per_token * n_tokens : 0.0; }
};

// The abort policy (DESIGN section 4): whether what is left of a step of `n_tokens`, of which the fraction `done` is
// computed, costs more than computing its `n_surviving_tokens` again. With no survivors it always does.
bool worth_aborting(const StepCost & cost, int32_t n_tokens, int32_t n_surviving_tokens, double done) noexcept;

// Decides, once per graph node, whether the running llama_decode is to be aborted.
//
// Armed for one step and disarmed after it, so nothing outlives the step: a flag that is raised later meets a gate that
// knows no members. ggml polls from its thread 0, which is the thread that called llama_decode and armed the gate;
// only the flags are shared between threads.
//
// With nobody left who wants the step, it aborts; otherwise as worth_aborting() says. `only_unanimous` forbids the second
// (recurrent and hybrid memories, where an abort would harm the survivors).
class AbortGate {
  public:
    void arm(StepCost cost, bool only_unanimous, uint32_t polls_expected);
    void add(const CancelFlag * flag, int32_t n_tokens);
    void disarm();

    // For tests: raise `flag` at the given poll of the next step, counted from 1, and never again. It makes every point
    // at which a cancel can arrive reachable, one by one.
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag);

    // ggml_abort_callback; `self` is the gate.
    static bool poll(void * self) noexcept;

    bool fired() const noexcept { return fired_; }
    uint32_t polls() const noexcept { return polls_; }

    // Whether the policy chose to let a step go on although one of its members had been cancelled.
    bool spared() const noexcept { return spared_; }

  private:
    struct Member {
        const CancelFlag * flag;
        int32_t n_tokens;
    };

    bool decide() noexcept;
    void spring_trap() noexcept;

    std::vector<Member> members_;
    StepCost cost_;
    bool armed_ = false;
    bool only_unanimous_ = false;
    bool fired_ = false;
    bool spared_ = false;
    uint32_t polls_ = 0;
    uint32_t polls_expected_ = 0;
    int32_t n_tokens_ = 0;
    uint32_t trap_poll_ = 0;
    std::shared_ptr<CancelFlag> trap_flag_;
};

} // namespace pyllmcancel
