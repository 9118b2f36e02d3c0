// The model's own heads: hidden states, from the context that computes the model to the one that computes its heads.

#include "step/context.hpp"

#include "model/heads.hpp"
#include "platform/errors.hpp"

#include <algorithm>

namespace pyllmcancel {

int32_t Context::first_state(int32_t seq) const {
    const ContextSequence & sequence = sequences_.at(seq);
    const HiddenRows & states = sequence.states;
    return states.begin() < states.end() ? states.begin() : sequence.n_committed;
}

void Context::follow(int32_t seq, const Context & model, int32_t of, int32_t first, int32_t n_tokens) {
    const BusyGuard guard = runner_.enter();
    if (!params_.heads || !sequences_.at(seq).open) {
        throw UsageError("only an open sequence of a context of heads follows another");
    }
    model.check_at_rest();
    ContextSequence & sequence = sequences_.at(seq);
    const HiddenRows & states = model.sequences_.at(of).states;
    const int32_t end = std::min(sequence.n_committed + std::min(n_tokens, n_batch()), sequence.n_known());
    for (int32_t token = sequence.n_committed; token < end; ++token) {
        const int32_t before = first + token - 1;
        const float * row = states.at(before);
        if (!row && before >= 0) {
            throw UsageError("the hidden state of token " + std::to_string(before) + " is not kept");
        }
        sequence.states.put(token, row, heads::width(model_->handle()), n_batch() + 1);
    }
}

// llama.cpp gives the states of the outputs or, for some architectures, those of as many first rows: the two are the same
// if each row is an output.
void Context::check_states(const std::vector<StepItem> & items) const {
    if (!params_.heads) {
        return;
    }
    std::size_t n_outputs = 0;
    for (const StepItem & item : items) {
        const ContextSequence & sequence = sequences_.at(item.seq);
        const int32_t end = sequence.n_committed + item.n_tokens;
        if (!item.draft.empty() || sequence.n_described > 0) {
            throw UsageError("heads compute no drafts, and describe no tokens");
        }
        if (sequence.states.begin() > sequence.n_committed || sequence.states.end() < end) {
            throw UsageError("sequence " + std::to_string(item.seq) + " lacks hidden states");
        }
        n_outputs += end == sequence.n_known() ? 1 : 0;
    }
    if (n_outputs > 0 && n_outputs < static_cast<std::size_t>(n_rows_of(items))) {
        throw UsageError("heads compute the last token of a sequence in a step without others");
    }
}

// Called after a step that returned ok, for the rows of it that are committed.
void Context::keep_states(const StepItem & item, int32_t n_before, int32_t first_row) {
    ContextSequence & sequence = sequences_.at(item.seq);
    const auto limit = static_cast<int32_t>(params_.n_states);
    for (int32_t token = std::max(n_before, sequence.n_committed - limit); token < sequence.n_committed; ++token) {
        const float * row = heads::state(runner_.context(), first_row + token - n_before);
        sequence.states.put(token, row, heads::width(model_->handle()), limit);
    }
}

// The token that a head guessed goes with the head's own state.
void Context::keep_state_of_guess(ContextSequence & sequence, int32_t row) {
    const float * state = heads::state(runner_.context(), row);
    sequence.states.put(sequence.n_known() - 1, state, heads::width(model_->handle()), n_batch() + 1);
}

} // namespace pyllmcancel
