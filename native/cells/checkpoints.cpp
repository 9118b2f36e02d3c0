#include "cells/checkpoints.hpp"

#include "platform/llama_calls.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

// The part that cannot be rolled back; llama.cpp leaves the attention cells out.
constexpr llama_state_seq_flags partial = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

// Idle sequences lose copies before running ones, and those with many before those with few; a running one keeps its last.
// False if there is none to drop.
bool drop_one_of(const std::vector<CheckpointOwner> & owners) {
    const CheckpointOwner * loser = nullptr;
    for (const CheckpointOwner & owner : owners) {
        const std::size_t spare = owner.checkpoints->size();
        if (spare <= (owner.open ? 1U : 0U)) {
            continue;
        }
        if (!loser || (loser->open && !owner.open) ||
            (loser->open == owner.open && spare > loser->checkpoints->size())) {
            loser = &owner;
        }
    }
    if (loser) {
        loser->checkpoints->drop_one();
    }
    return loser != nullptr;
}

} // namespace

bool Checkpoints::save(llama_context * context, llama_seq_id seq, int32_t n_tokens, std::size_t most,
                       std::size_t room) {
    const std::size_t size = size_of(context, seq);
    if (size == 0 || size > room || most == 0) {
        return false;
    }
    while (checkpoints_.size() >= most || n_bytes() + size > room) {
        drop_one();
    }
    auto state = std::make_shared<const Pages>(size);
    if (!*state || calls::state_get(context, state->data(), size, seq, partial) != size) {
        return false;
    }
    add(n_tokens, std::move(state));
    return true;
}

void Checkpoints::add(int32_t n_tokens, std::shared_ptr<const Pages> state) {
    checkpoints_.push_back({n_tokens, std::move(state)});
}

int32_t Checkpoints::latest(int32_t n_tokens) const noexcept {
    int32_t latest = 0;
    for (const Checkpoint & checkpoint : checkpoints_) {
        if (checkpoint.n_tokens <= n_tokens) {
            latest = checkpoint.n_tokens;
        }
    }
    return latest;
}

bool Checkpoints::restore(llama_context * context, llama_seq_id seq, int32_t n_tokens) const {
    const auto found = std::find_if(checkpoints_.begin(), checkpoints_.end(),
                                    [&](const Checkpoint & checkpoint) { return checkpoint.n_tokens == n_tokens; });
    if (found == checkpoints_.end()) {
        return false;
    }
    const Pages & state = *found->state;
    return calls::state_set(context, state.data(), state.size(), seq, partial) == state.size();
}

void Checkpoints::drop_after(int32_t n_tokens) {
    const auto later = [&](const Checkpoint & checkpoint) { return checkpoint.n_tokens > n_tokens; };
    checkpoints_.erase(std::remove_if(checkpoints_.begin(), checkpoints_.end(), later), checkpoints_.end());
}

// The others stay spread over the prompt. The newest is kept while there is another: an abort goes back to it.
void Checkpoints::drop_one() {
    std::size_t least = 0;
    int32_t least_gap = 0;
    for (std::size_t i = 0; i + 1 < checkpoints_.size(); ++i) {
        const int32_t before = i > 0 ? checkpoints_[i - 1].n_tokens : 0;
        const int32_t gap = checkpoints_[i + 1].n_tokens - before;
        if (i == 0 || gap < least_gap) {
            least = i;
            least_gap = gap;
        }
    }
    checkpoints_.erase(checkpoints_.begin() + static_cast<std::ptrdiff_t>(least));
}

std::size_t Checkpoints::size_of(llama_context * context, llama_seq_id seq) {
    return calls::state_size(context, seq, partial);
}

std::size_t Checkpoints::n_bytes() const noexcept {
    std::size_t bytes = 0;
    for (const Checkpoint & checkpoint : checkpoints_) {
        bytes += checkpoint.state->size();
    }
    return bytes;
}

std::size_t make_room(std::size_t size, std::size_t limit, const std::vector<CheckpointOwner> & others) {
    const auto room = [&] {
        std::size_t taken = 0;
        for (const CheckpointOwner & other : others) {
            taken += other.checkpoints->n_bytes();
        }
        return limit - std::min(limit, taken);
    };
    while (size <= limit && room() < size && drop_one_of(others)) {
    }
    return room();
}

} // namespace pyllmcancel
