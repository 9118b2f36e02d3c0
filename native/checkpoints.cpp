#include "checkpoints.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

// The part that cannot be rolled back; llama.cpp leaves the attention cells out.
constexpr llama_state_seq_flags partial = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

} // namespace

bool Checkpoints::save(llama_context * context, llama_seq_id seq, int32_t n_tokens, std::size_t most,
                       std::size_t room) {
    const std::size_t size = llama_state_seq_get_size_ext(context, seq, partial);
    if (size == 0 || most == 0) {
        return false;
    }
    while (checkpoints_.size() >= most || (n_bytes() + size > room && !checkpoints_.empty())) {
        forget_oldest();
    }
    if (size > room) {
        return false;
    }
    Checkpoint checkpoint{n_tokens, std::vector<uint8_t>(size)};
    if (llama_state_seq_get_data_ext(context, checkpoint.state.data(), size, seq, partial) != size) {
        return false;
    }
    checkpoints_.push_back(std::move(checkpoint));
    return true;
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
    const std::vector<uint8_t> & state = found->state;
    return llama_state_seq_set_data_ext(context, state.data(), state.size(), seq, partial) == state.size();
}

void Checkpoints::forget_after(int32_t n_tokens) {
    const auto later = [&](const Checkpoint & checkpoint) { return checkpoint.n_tokens > n_tokens; };
    checkpoints_.erase(std::remove_if(checkpoints_.begin(), checkpoints_.end(), later), checkpoints_.end());
}

bool Checkpoints::forget_oldest() {
    if (checkpoints_.empty()) {
        return false;
    }
    checkpoints_.erase(checkpoints_.begin());
    return true;
}

std::size_t Checkpoints::n_bytes() const noexcept {
    std::size_t bytes = 0;
    for (const Checkpoint & checkpoint : checkpoints_) {
        bytes += checkpoint.state.size();
    }
    return bytes;
}

} // namespace pyllmcancel
