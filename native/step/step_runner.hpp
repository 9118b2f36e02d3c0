#pragma once

#include "devices/owned_context.hpp"
#include "devices/turns.hpp"
#include "model/model.hpp"
#include "step/abort_gate.hpp"
#include "step/batch.hpp"
#include "step/busy_guard.hpp"
#include "step/common_params.hpp"
#include "step/step_status.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pyllmcancel {

// The report of a step, whatever it computes.
struct StepOutcome {
    StepStatus status = StepStatus::ok;
    bool spared = false; // a member was cancelled, and the policy let the step finish for the others
    uint32_t polls = 0;  // graph nodes computed
    int64_t began_us = 0; // as now_us() tells
    int64_t decode_us = 0;
    int32_t n_threads = 1; // that computed
};

// A llama_context with its batch and its abort gate: computes the steps of a Context or an Embedder.
class StepRunner {
  public:
    using Compute = int32_t (*)(llama_context *, llama_batch);

    // Makes the llama_context. Throws ContextError, which says that `what` could not be made and why.
    StepRunner(const Model & model, llama_context_params native, const CommonParams & params, const std::string & what);

    // Held by each call that changes the context. Throws ContextBusy.
    [[nodiscard]] BusyGuard enter() { return BusyGuard(busy_); }

    // Throws ContextBusy while such a call is made, or a step is ahead.
    void check_at_rest() const {
        if (busy_.load(std::memory_order_acquire)) {
            throw ContextBusy();
        }
    }

    // Filled by the caller before run().
    Batch & batch() noexcept { return batch_; }

    // Computes the batch with `adapters`. The gate may abort it as `members` are cancelled; see AbortGate::arm for
    // `only_unanimous`.
    StepOutcome run(Compute compute, std::vector<AbortGate::Member> members, StepCost cost, bool only_unanimous,
                    const AdapterScales & adapters);

    // The logits of a row of the last step. run() has waited for the device: llama_get_logits_ith waits again for each row.
    const float * logits(int32_t row) const;

    // Lets the compute threads sleep until the next step.
    void rest();

    // See Context.
    void take_turns(std::shared_ptr<Turns> turns) {
        const BusyGuard guard = enter();
        turns_ = std::move(turns);
    }

    // See AbortGate; has no effect where steps are not abortable.
    void give_way(std::shared_ptr<const CancelFlag> flag) {
        const BusyGuard guard = enter();
        gate_.give_way(abortable_ ? std::move(flag) : nullptr);
    }

    // For tests: see AbortGate.
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag, uint32_t n_later = 0) {
        gate_.raise_at(poll, std::move(flag), n_later);
    }

    // The number of compute threads of the running step, or of the last one. May be called from any thread.
    int32_t n_threads() const noexcept { return context_.n_threads(); }

    llama_context * context() const noexcept { return context_.get(); }

  private:
    void apply(const AdapterScales & adapters);

    const Adapters & adapters_; // the model's, which outlives this
    AdapterScales applied_;     // those that the llama_context has
    std::shared_ptr<Turns> turns_; // null: nothing else computes
    AbortGate gate_; // outlives context_, whose callbacks point to it
    OwnedContext context_;
    Batch batch_;
    bool abortable_;
    GraphNodes nodes_; // of the last steps that ran to their end
    std::atomic<bool> busy_{false};
};

} // namespace pyllmcancel
