#pragma once

#include "llama.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace pyllmcancel {

// One sequence's part in a step: how many of its next uncommitted tokens to compute.
struct StepItem {
    int32_t seq;
    int32_t n_tokens;
};

// What a sequence has for a step: so many tokens that are not computed yet, to be taken all at once if `whole`.
struct Pending {
    bool open;
    int64_t n_tokens;
    bool whole;
};

int32_t n_tokens_of(const std::vector<StepItem> & items) noexcept;

// Throws UsageError unless the items name different open sequences, and not more tokens than those have, or a step can
// take: llama.cpp would end the process over an oversized batch. `pending_of` throws it where there is no such sequence.
void check_items(const std::vector<StepItem> & items, int32_t n_batch,
                 const std::function<Pending(int32_t)> & pending_of);

// Throws UsageError for a token that the vocabulary does not have.
void check_tokens(const std::vector<llama_token> & tokens, const llama_vocab * vocab);

} // namespace pyllmcancel
