#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pyllmcancel {

// The arrays of one llama_batch, grown once to the context's batch size and filled anew for every step.
class Batch {
  public:
    void clear();

    // Adds one token of one sequence; returns its row in the batch.
    int32_t add(llama_token token, llama_pos pos, llama_seq_id seq, bool output);

    // Adds the hidden state that goes with the token added last, or with none of a step's tokens.
    void add_state(const float * state, std::size_t width) { states_.insert(states_.end(), state, state + width); }

    // Instead of tokens: `n_rows` rows of an embedding, one sequence's, at these positions, a section after the other. The
    // rows are not copied. `output`: the last row gives logits.
    void set_rows(const float * rows, int32_t n_rows, std::vector<llama_pos> positions, llama_seq_id seq, bool output);

    int32_t size() const noexcept { return static_cast<int32_t>(outputs_.size()); }

    // Valid until the next add() or clear().
    llama_batch view();

  private:
    const float * rows_ = nullptr; // instead of tokens_
    std::vector<float> states_;    // of all tokens, or none
    std::vector<llama_token> tokens_;
    std::vector<llama_pos> positions_;
    std::vector<int32_t> n_seq_ids_;
    std::vector<llama_seq_id> seq_ids_;
    std::vector<llama_seq_id *> seq_id_rows_;
    std::vector<int8_t> outputs_;
};

} // namespace pyllmcancel
