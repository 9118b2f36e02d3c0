#pragma once

#include "cells/pages.hpp"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// The cells of an idle prefix, copied out of a context into plain memory. Attention on the CPU reads every cell of a
// context, whichever sequence holds it; swapped out, a prefix slows no step down.
class SwappedPrefix {
  public:
    // Returns the bytes that a copy of `seq` takes.
    static std::size_t size_of(llama_context * context, llama_seq_id seq);

    // Copies the cells of `seq`, which hold `tokens`. Null if the copy takes more than `max_bytes`, or than there is
    // memory.
    static std::shared_ptr<const SwappedPrefix> copy(llama_context * context, llama_seq_id seq,
                                                     std::vector<llama_token> tokens, std::size_t max_bytes);

    // Puts the cells into `seq`, in place of its own. False, and `seq` is empty, if there is no room.
    bool restore(llama_context * context, llama_seq_id seq) const;

    // Returns how many leading tokens are the same; never the last of `tokens`, whose logits are wanted.
    int32_t common_prefix(const std::vector<llama_token> & tokens) const noexcept;

    const std::vector<llama_token> & tokens() const noexcept { return tokens_; }
    int32_t n_tokens() const noexcept { return static_cast<int32_t>(tokens_.size()); }
    std::size_t n_bytes() const noexcept { return state_.size(); }

  private:
    SwappedPrefix(std::vector<llama_token> tokens, std::size_t n_bytes);

    std::vector<llama_token> tokens_;
    Pages state_;
};

// Returns how many leading tokens of a prompt `known` has; never the prompt's last, whose logits are wanted.
int32_t common_prefix(const llama_token * known, std::size_t n_known, const std::vector<llama_token> & prompt) noexcept;

} // namespace pyllmcancel
