#include "cells/swapped_prefix.hpp"

#include "platform/llama_calls.hpp"

#include <algorithm>

namespace pyllmcancel {

int32_t common_prefix(const llama_token * known, std::size_t n_known,
                      const std::vector<llama_token> & prompt) noexcept {
    const std::size_t most = std::min(n_known, prompt.empty() ? 0 : prompt.size() - 1);
    return static_cast<int32_t>(std::mismatch(known, known + most, prompt.begin()).first - known);
}

SwappedPrefix::SwappedPrefix(std::vector<llama_token> tokens, std::size_t n_bytes)
    : tokens_(std::move(tokens)), state_(n_bytes) {}

std::size_t SwappedPrefix::size_of(llama_context * context, llama_seq_id seq) {
    return calls::state_size(context, seq, 0);
}

std::shared_ptr<const SwappedPrefix> SwappedPrefix::copy(llama_context * context, llama_seq_id seq,
                                                         std::vector<llama_token> tokens, std::size_t max_bytes) {
    const std::size_t size = size_of(context, seq);
    if (size == 0 || size > max_bytes) {
        return nullptr;
    }
    const std::shared_ptr<SwappedPrefix> prefix(new SwappedPrefix(std::move(tokens), size));
    if (!prefix->state_ || calls::state_get(context, prefix->state_.data(), size, seq, 0) != size) {
        return nullptr;
    }
    return prefix;
}

bool SwappedPrefix::restore(llama_context * context, llama_seq_id seq) const {
    if (calls::state_set(context, state_.data(), state_.size(), seq, 0) == state_.size()) {
        return true;
    }
    llama_memory_seq_rm(llama_get_memory(context), seq, -1, -1);
    return false;
}

int32_t SwappedPrefix::common_prefix(const std::vector<llama_token> & tokens) const noexcept {
    return pyllmcancel::common_prefix(tokens_.data(), tokens_.size(), tokens);
}

} // namespace pyllmcancel
