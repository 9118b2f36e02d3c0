#pragma once

#include "cells/checkpoints.hpp"
#include "cells/media_spans.hpp"
#include "cells/pages.hpp"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// The tokens of a copied prefix, and what a request can reuse of them.
struct PrefixExtent {
    std::vector<llama_token> tokens;
    int32_t least = 1; // fewer tokens than these cannot be reused directly, but from a checkpoint only
    Checkpoints checkpoints;
    MediaSpans media; // of the tokens
};

// One state of a prefix: of all its tokens, or a checkpoint.
struct PrefixPart {
    int32_t n_tokens;
    std::size_t n_bytes;
};

// The memory of an idle prefix, copied out of a context into plain memory: its cells, its state, its checkpoints.
// Attention on the CPU reads every cell of a context, whichever sequence holds it; swapped out, a prefix slows no step
// down.
class SwappedPrefix {
  public:
    // Returns the bytes that a copy of `seq` takes, without its checkpoints, which are shared.
    static std::size_t size_of(llama_context * context, llama_seq_id seq);

    // Copies the memory of `seq`. Null if the copy takes more than `max_bytes`, or than there is memory.
    static std::shared_ptr<const SwappedPrefix> copy(llama_context * context, llama_seq_id seq, PrefixExtent extent,
                                                     std::size_t max_bytes);

    // Makes a prefix whose states its user writes: first that of all `tokens`, then the checkpoints, shortest first. Null
    // if there is no memory; UsageError for lengths that no prefix has.
    static std::shared_ptr<const SwappedPrefix> blank(std::vector<llama_token> tokens, int32_t least,
                                                      const std::vector<PrefixPart> & parts);

    // Puts the cells into `seq`, in place of its own. False, and `seq` is empty, if there is no room.
    bool restore(llama_context * context, llama_seq_id seq) const;

    // Returns how many leading tokens a request with these `tokens` can reuse; never the last, whose logits are wanted.
    int32_t common_prefix(const std::vector<llama_token> & tokens) const noexcept;

    const std::vector<llama_token> & tokens() const noexcept { return extent_.tokens; }
    const Checkpoints & checkpoints() const noexcept { return extent_.checkpoints; }
    const MediaSpans & media() const noexcept { return extent_.media; }
    int32_t least() const noexcept { return extent_.least; }
    int32_t n_tokens() const noexcept { return static_cast<int32_t>(extent_.tokens.size()); }
    std::size_t n_bytes() const noexcept { return state_.size() + extent_.checkpoints.n_bytes(); }

    // The states, in the order of blank().
    std::size_t n_parts() const noexcept { return 1 + extent_.checkpoints.size(); }
    int32_t part_length(std::size_t index) const {
        return index == 0 ? n_tokens() : extent_.checkpoints.length(index - 1);
    }
    const Pages & part(std::size_t index) const { return index == 0 ? state_ : extent_.checkpoints.state(index - 1); }

  private:
    SwappedPrefix(PrefixExtent extent, std::size_t n_bytes);

    PrefixExtent extent_;
    Pages state_;
};

// Returns how many leading tokens of a prompt `known` has; never the prompt's last, whose logits are wanted.
int32_t common_prefix(const llama_token * known, std::size_t n_known, const std::vector<llama_token> & prompt) noexcept;

} // namespace pyllmcancel
