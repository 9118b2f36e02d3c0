#include "step/context.hpp"

#include "platform/errors.hpp"

#include <algorithm>

namespace pyllmcancel {

void Context::start_ahead() {
    if (!steps_ahead_) {
        steps_ahead_ = StepsAhead::start([this] { return compute(present_.items, present_.cost); },
                                         [this](const StepResult & result) { return advance(result); });
    }
}

StepResult Context::step_ahead(const std::vector<StepItem> & items, StepCost cost, std::vector<StepEnd> ends) {
    std::unique_ptr<BusyGuard> guard(new BusyGuard(runner_.enter()));
    if (ends.size() != items.size()) {
        throw UsageError("a step ahead wants to know of each sequence when it ends");
    }
    start_ahead();
    present_ = {items, std::move(ends), cost};
    return steps_ahead_->begin(std::move(guard));
}

StepResult Context::collect(bool goes_on) {
    if (!steps_ahead_) {
        throw UsageError("no step is ahead");
    }
    return steps_ahead_->collect(goes_on);
}

// Makes the step after the present one the present one, if nothing speaks against it that can be known here.
bool Context::advance(const StepResult & result) {
    if (ahead_forbidden_.load(std::memory_order_acquire) || result.status != StepStatus::ok) {
        return false;
    }
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
        present_.ends[i].n_wanted -= static_cast<int32_t>(result.rows[i].sampled.size());
        if (has_ended(result.rows[i], present_.ends[i])) {
            return false;
        }
        present_.items[i] = {present_.items[i].seq, 1, {}};
    }
    // Without them idle prefixes are to be evicted, or sequences to wait.
    return n_cells() - n_cells_used() >= static_cast<int32_t>(present_.items.size());
}

bool Context::has_ended(const StepRow & row, const StepEnd & end) const {
    const ContextSequence & sequence = sequences_.at(row.seq);
    // Without a token its prompt is not at its end, or its row was at fault, or it was cancelled.
    return row.sampled.empty() || row.fault != LogitFault::none || end.n_wanted < 1 || sequence.flag->raised() ||
           sequence.n_known() > n_ctx() || sequence.n_pending() > 1 ||
           std::any_of(row.sampled.begin(), row.sampled.end(),
                       [&](const Sampled & sampled) { return ends(sampled.token, end); });
}

bool Context::ends(llama_token token, const StepEnd & end) const {
    return llama_vocab_is_eog(model_->vocab(), token) ||
           std::find(end.stop_tokens.begin(), end.stop_tokens.end(), token) != end.stop_tokens.end();
}

} // namespace pyllmcancel
