#include "step/step_runner.hpp"

#include "llama-context.h"
#include "platform/assertions.hpp"
#include "platform/steady_clock.hpp"

#include <optional>

namespace pyllmcancel {

StepRunner::StepRunner(const Model & model, llama_context_params native, const CommonParams & params,
                       const std::string & what)
    : adapters_(model.adapters()), abortable_(params.abortable) {
    gate_.install(native, params.cut_seconds, model.is_offloaded());
    context_.make(model.handle(), native, params.adapt_threads, what);
}

void StepRunner::rest() {
    const BusyGuard guard = enter();
    context_.rest();
}

// llama.cpp makes its graphs and their buffers anew after each change, so that there is none without need.
void StepRunner::apply(const AdapterScales & adapters) {
    if (adapters != applied_) {
        adapters_.set(context_.get(), adapters);
        applied_ = adapters;
    }
}

StepOutcome StepRunner::run(Compute compute, std::vector<AbortGate::Member> members, StepCost cost, bool only_unanimous,
                            const AdapterScales & adapters) {
    if (!abortable_) {
        members.clear();
    }
    StepOutcome outcome;
    std::optional<Turns::Turn> turn;
    if (turns_) {
        turn.emplace(*turns_, Turns::Kind::step);
    }
    const StepsRun running;
    context_.before_step();
    apply(adapters);
    outcome.n_threads = context_.n_threads();
    const int64_t begin = outcome.began_us = now_us();
    const AbortGate::Ticket ticket = gate_.arm(cost, std::move(members), only_unanimous, nodes_);
    outcome.status = status_of(gate_.run(compute, context_.get(), batch_.view()));
    llama_synchronize(context_.get());
    outcome.decode_us = now_us() - begin;
    if (turns_ && turns_->waits(Turns::Kind::part)) {
        context_.rest(); // threads that spin would compete with the encoder's
    }
    outcome.polls = gate_.polls();
    outcome.spared = gate_.spared() && outcome.status == StepStatus::ok;
    if (outcome.status == StepStatus::ok) {
        (gate_.divides() ? nodes_.divided : nodes_.whole) = outcome.polls;
    }
    return outcome;
}

const float * StepRunner::logits(int32_t row) const { return context_.get()->get_logits_ith(row); }

} // namespace pyllmcancel
