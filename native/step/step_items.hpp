#pragma once

#include "llama.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace pyllmcancel {

// One sequence's part in a step: how many of its next uncommitted tokens to compute, and a guess of those that follow
// its known ones. Only an item that computes all known tokens may have a draft.
struct StepItem {
    int32_t seq;
    int32_t n_tokens;
    std::vector<llama_token> draft;

    int32_t n_drafted() const noexcept { return static_cast<int32_t>(draft.size()); }
    int32_t n_rows() const noexcept { return n_tokens + n_drafted(); }
};

// The pending tokens of a sequence: how many are not computed yet; with `whole` a step must take all of them.
struct Pending {
    bool open;
    int64_t n_tokens;
    bool whole;
};

// The rows of all items, drafted tokens included.
int32_t n_rows_of(const std::vector<StepItem> & items) noexcept;

// Throws UsageError unless the items name different open sequences, and no more tokens than those have pending, and than
// fit into a batch: llama.cpp would end the process over an oversized one. `pending_of` throws it for an unknown seq_id.
void check_items(const std::vector<StepItem> & items, int32_t n_batch,
                 const std::function<Pending(int32_t)> & pending_of);

} // namespace pyllmcancel
