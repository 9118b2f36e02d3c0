#include "cells/swapped_prefix.hpp"

#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"

#include <algorithm>

namespace pyllmcancel {

int32_t common_prefix(const llama_token * known, std::size_t n_known,
                      const std::vector<llama_token> & prompt) noexcept {
    const std::size_t most = std::min(n_known, prompt.empty() ? 0 : prompt.size() - 1);
    return static_cast<int32_t>(std::mismatch(known, known + most, prompt.begin()).first - known);
}

SwappedPrefix::SwappedPrefix(PrefixExtent extent, std::size_t n_bytes) : extent_(std::move(extent)), state_(n_bytes) {}

std::size_t SwappedPrefix::size_of(llama_context * context, llama_seq_id seq) {
    return calls::state_size(context, seq, 0);
}

std::shared_ptr<const SwappedPrefix> SwappedPrefix::copy(llama_context * context, llama_seq_id seq, PrefixExtent extent,
                                                         std::size_t max_bytes) {
    const std::size_t size = size_of(context, seq);
    if (size == 0 || size > max_bytes) {
        return nullptr;
    }
    const std::shared_ptr<SwappedPrefix> prefix(new SwappedPrefix(std::move(extent), size));
    if (!prefix->state_ || calls::state_get(context, prefix->state_.data(), size, seq, 0) != size) {
        return nullptr;
    }
    return prefix;
}

std::shared_ptr<const SwappedPrefix> SwappedPrefix::blank(std::vector<llama_token> tokens, int32_t least,
                                                          const std::vector<PrefixPart> & parts) {
    const auto n_tokens = static_cast<int32_t>(tokens.size());
    int32_t longest = 0;
    PrefixExtent extent{std::move(tokens), least, {}, {}};
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool fits =
            i == 0 ? parts[i].n_tokens == n_tokens : parts[i].n_tokens > longest && parts[i].n_tokens <= n_tokens;
        if (!fits || parts[i].n_bytes == 0) {
            throw UsageError("the states of a prefix do not fit its tokens");
        }
        if (i > 0) {
            longest = parts[i].n_tokens;
            const auto state = std::make_shared<const Pages>(parts[i].n_bytes);
            if (!*state) {
                return nullptr;
            }
            extent.checkpoints.add(longest, state);
        }
    }
    if (n_tokens == 0 || parts.empty() || least < 1 || least > n_tokens) {
        throw UsageError("a prefix has tokens, and a state of them");
    }
    std::shared_ptr<const SwappedPrefix> prefix(new SwappedPrefix(std::move(extent), parts.front().n_bytes));
    return prefix->state_ ? prefix : nullptr;
}

bool SwappedPrefix::restore(llama_context * context, llama_seq_id seq) const {
    if (calls::state_set(context, state_.data(), state_.size(), seq, 0) == state_.size()) {
        return true;
    }
    llama_memory_seq_rm(llama_get_memory(context), seq, -1, -1);
    return false;
}

int32_t SwappedPrefix::common_prefix(const std::vector<llama_token> & tokens) const noexcept {
    const int32_t n_equal = pyllmcancel::common_prefix(extent_.tokens.data(), extent_.tokens.size(), tokens);
    const int32_t n_tokens = extent_.media.whole(n_equal);
    return n_tokens >= extent_.least ? n_tokens : extent_.checkpoints.latest(n_tokens);
}

} // namespace pyllmcancel
