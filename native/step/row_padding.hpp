#pragma once

#include "step/step_items.hpp"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace pyllmcancel {

// A token that is computed at the end of some sequence, and removed after the step.
struct PaddingToken {
    llama_seq_id seq;
    llama_pos pos;
};

// The facts of a context that padding needs.
struct PaddingRoom {
    const std::vector<llama_pos> & next_positions; // of every sequence: how many its committed tokens take
    int32_t n_ctx;                            // limit of tokens of a sequence
    int32_t n_free;                           // cells that the step leaves free
    bool unified;                             // any sequence may use any cell
};

// Decides which tokens to add to a step. ggml's repacked kernels multiply four rows at once, in the time of two, and
// the remaining ones one by one: three take longer than four. With divided cells only neighbouring sequences are
// computed together, and padding the gap between two groups of them can save a whole pass.
std::vector<PaddingToken> padding_of(const std::vector<StepItem> & items, const PaddingRoom & room);

} // namespace pyllmcancel
