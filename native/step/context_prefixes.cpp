// Copies of idle prefixes: from one sequence to another, out of the context, and back.

#include "step/context.hpp"

#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"

namespace pyllmcancel {

// Between divided cells llama.cpp copies whole streams, and only later.
bool Context::copy_cells(int32_t from, int32_t to, std::size_t max_bytes) {
    const auto copy = SwappedPrefix::copy(runner_.context(), from, {}, max_bytes);
    return copy && copy->restore(runner_.context(), to);
}

bool Context::share_prefix(int32_t from, int32_t to, int32_t n_tokens, std::size_t max_bytes) {
    const BusyGuard guard = runner_.enter();
    const ContextSequence & source = sequences_.at(from);
    ContextSequence & target = sequences_.at(to);
    if (target.open || from == to || n_tokens < 1 || n_tokens > source.n_committed) {
        throw UsageError("a prefix can be shared only with another, idle sequence, and only as far as it is computed");
    }
    // A checkpoint would not do: it restores the sequence that it is of.
    if (!sequences_.survives_abort() || !sequences_.window_covers(from, n_tokens) ||
        (!params_.kv_unified && !can_swap())) {
        return false;
    }
    sequences_.clear(to);
    if (params_.kv_unified) {
        sequences_.share(from, to, n_tokens);
    } else if (!copy_cells(from, to, max_bytes) ||
               !calls::remove_cells(llama_get_memory(runner_.context()), to, source.media.position(n_tokens), -1)) {
        return false;
    }
    target.media = source.media.of_prefix(n_tokens);
    target.tokens.assign(source.tokens.begin(), source.tokens.begin() + n_tokens);
    target.n_committed = n_tokens;
    target.states = source.states;
    target.states.truncate(n_tokens);
    return true;
}

std::size_t Context::swap_bytes(int32_t seq) {
    const BusyGuard guard = runner_.enter();
    return n_committed(seq) > 0 ? SwappedPrefix::size_of(runner_.context(), seq) : 0;
}

std::shared_ptr<const SwappedPrefix> Context::copy_out(int32_t seq, std::size_t max_bytes) {
    const BusyGuard guard = runner_.enter();
    const ContextSequence & sequence = sequences_.idle(seq);
    if (!can_copy() || sequence.n_committed == 0) {
        return nullptr;
    }
    PrefixExtent extent{sequence.tokens, sequences_.least_reusable(seq), sequence.checkpoints, sequence.media};
    return SwappedPrefix::copy(runner_.context(), seq, std::move(extent), max_bytes);
}

bool Context::swap_in(int32_t seq, const SwappedPrefix & prefix) {
    const BusyGuard guard = runner_.enter();
    ContextSequence & sequence = sequences_.idle(seq);
    sequences_.clear(seq);
    sequence.media = prefix.media();
    sequence.tokens = prefix.tokens(); // before the cells: this may fail for want of memory
    sequence.checkpoints = prefix.checkpoints();
    if (!prefix.restore(runner_.context(), seq)) {
        sequence.tokens.clear();
        sequence.checkpoints = {};
        return false;
    }
    sequence.n_committed = prefix.n_tokens();
    return true;
}

} // namespace pyllmcancel
