#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace pyllmcancel {

// Copies of what one sequence's memory cannot be rolled back to: the recurrent state of recurrent and hybrid models, the
// window of sliding-window ones. An aborted prompt goes on from the newest of them, a changed prompt from the last one
// before the change. Each belongs to the first `n_tokens` tokens of its sequence.
class Checkpoints {
  public:
    // Copies the state that `seq` has after `n_tokens` tokens. Of more than `most` copies, or of more than `room` bytes,
    // the one goes that is missed least. Returns false, with nothing copied, for a state that is itself too large.
    bool save(llama_context * context, llama_seq_id seq, int32_t n_tokens, std::size_t most, std::size_t room);

    // The newest one of at most `n_tokens` tokens; 0 for none.
    int32_t latest(int32_t n_tokens) const noexcept;

    // Put back the state after exactly `n_tokens` tokens. False if there is none, or llama.cpp refuses it; then the
    // sequence's memory must be cleared.
    bool restore(llama_context * context, llama_seq_id seq, int32_t n_tokens) const;

    void forget_after(int32_t n_tokens);

    std::size_t n_bytes() const noexcept;

  private:
    struct Checkpoint {
        int32_t n_tokens;
        std::vector<uint8_t> state;
    };

    void forget_least_missed();

    std::vector<Checkpoint> checkpoints_; // shortest first
};

} // namespace pyllmcancel
