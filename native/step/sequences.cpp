#include "step/sequences.hpp"

#include "cells/swapped_prefix.hpp"
#include "platform/llama_calls.hpp"
#include "step/context.hpp"

#include <algorithm>

namespace pyllmcancel {

Sequences::Sequences(llama_context * context, const Model & model, const ContextParams & params)
    : SequenceTable(params.n_seq_max), context_(context), params_(params), kind_(model.memory_kind()),
      n_swa_(llama_model_n_swa(model.handle())) {
    shared_cells_.resize(params.n_seq_max);
}

bool Sequences::survives_abort() const noexcept { return kind_ == MemoryKind::attention || params_.trust_any_memory; }

bool Sequences::window_covers(int32_t seq, int32_t n_tokens) const {
    return n_swa_ <= 0 || llama_memory_seq_pos_min(llama_get_memory(context_), seq) <=
                              std::max(0, at(seq).media.position(n_tokens) - n_swa_);
}

int32_t Sequences::least_reusable(int32_t seq) const {
    const int32_t n_committed = at(seq).n_committed;
    if (!survives_abort()) {
        return n_committed;
    }
    if (n_swa_ <= 0) {
        return 1;
    }
    const int32_t first = std::max(llama_memory_seq_pos_min(llama_get_memory(context_), seq), n_committed - n_swa_);
    return first <= 0 ? 1 : std::min(n_committed, first + n_swa_);
}

int32_t Sequences::common_prefix(int32_t seq, const std::vector<llama_token> & tokens, int32_t most,
                                 int32_t n_held) const {
    const ContextSequence & sequence = at(seq);
    const auto n_compared = static_cast<std::size_t>(sequence.n_committed - n_held);
    const int32_t n_equal = n_held + pyllmcancel::common_prefix(sequence.tokens.data() + n_held, n_compared, tokens);
    const int32_t n_tokens = sequence.media.whole(std::min(n_equal, most));
    if (n_tokens <= 0) {
        return 0;
    }
    // A recurrent state is that of its last token, and cannot be rolled back.
    const bool directly = survives_abort() ? window_covers(seq, n_tokens) : n_tokens == sequence.n_committed;
    return directly ? n_tokens : sequence.checkpoints.latest(n_tokens);
}

void Sequences::rewind(int32_t seq, int32_t n_tokens, bool state_is_intact) {
    ContextSequence & sequence = at(seq);
    llama_memory_t memory = llama_get_memory(context_);
    n_tokens = sequence.media.whole(n_tokens);
    const bool directly =
        survives_abort() ? window_covers(seq, n_tokens) : state_is_intact && n_tokens == sequence.n_committed;
    const bool rewound =
        n_tokens > 0 && (directly || sequence.checkpoints.restore(context_, seq, n_tokens)) &&
        (calls::remove_cells(memory, seq, sequence.media.position(n_tokens), -1) || params_.trust_any_memory);
    if (!rewound) {
        calls::remove_cells(memory, seq, -1, -1);
        n_tokens = 0;
    }
    sequence.n_committed = n_tokens;
    shared_cells_.truncate(seq, n_tokens);
    sequence.checkpoints.drop_after(n_tokens);
    sequence.states.truncate(n_tokens);
}

void Sequences::roll_back(const std::vector<StepItem> & items) {
    for (const StepItem & item : items) {
        const ContextSequence & sequence = at(item.seq);
        const int32_t n_committed = sequence.n_committed;
        rewind(item.seq, survives_abort() ? n_committed : sequence.checkpoints.latest(n_committed), false);
    }
}

void Sequences::share(int32_t from, int32_t to, int32_t n_tokens) {
    llama_memory_seq_cp(llama_get_memory(context_), from, to, 0, at(from).media.position(n_tokens));
    shared_cells_.share(from, to, n_tokens);
}

bool Sequences::is_checkpoint_due(const ContextSequence & sequence, const StepItem & item) const {
    const bool wanted = params_.checkpoint_interval > 0 && !keeps_every_cell();
    return wanted && item.n_tokens > 1 && !sequence.media.divides(sequence.n_committed) &&
           sequence.n_committed - sequence.checkpoints.latest(sequence.n_committed) >= params_.checkpoint_interval;
}

void Sequences::save_checkpoints(const std::vector<StepItem> & items) {
    for (const StepItem & item : items) {
        if (is_checkpoint_due(at(item.seq), item)) {
            save_checkpoint(item.seq);
        }
    }
}

void Sequences::save_checkpoint(int32_t seq) {
    ContextSequence & sequence = at(seq);
    std::vector<CheckpointOwner> others;
    for (ContextSequence & other : *this) {
        if (&other != &sequence) {
            others.push_back({&other.checkpoints, other.open});
        }
    }
    const std::size_t size = Checkpoints::size_of(context_, seq);
    const std::size_t room = make_room(size, params_.checkpoint_bytes, others);
    sequence.checkpoints.save(context_, seq, sequence.n_committed, params_.n_checkpoints, room);
}

uint64_t Sequences::checkpoint_bytes() const noexcept {
    uint64_t bytes = 0;
    for (const ContextSequence & sequence : *this) {
        bytes += sequence.checkpoints.n_bytes();
    }
    return bytes;
}

int32_t Sequences::n_cells_of(const std::vector<int32_t> & seqs) const {
    for (const int32_t seq : seqs) {
        (void) at(seq); // throws if there is none
    }
    return shared_cells_.count(seqs, lengths());
}

std::vector<int32_t> Sequences::lengths() const {
    std::vector<int32_t> lengths;
    for (const ContextSequence & sequence : *this) {
        lengths.push_back(sequence.n_committed);
    }
    return lengths;
}

} // namespace pyllmcancel
