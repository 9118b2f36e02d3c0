#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

namespace pyllmcancel {

// Why a row of logits could not be sampled. The request that got it fails; no other does.
enum class LogitFault : int32_t {
    none = 0,
    not_finite = 1,
    all_equal = 2,
    grammar = 3,
    too_complex = 4,
    no_memory = 5
};

struct TokenLogprob {
    llama_token token;
    float logprob; // natural logarithm
};

// One row of logits, length n_vocab, in llama.cpp's buffer. A vocabulary may have 150,000 tokens, and a row is read for
// every token of every sequence while nothing else computes: it is read once, in blocks, whose maxima are kept, and what
// is asked afterwards reads few blocks.
class Logits {
  public:
    Logits(const float * data, int32_t n_vocab);

    float operator[](llama_token token) const noexcept { return data_[token]; }
    int32_t n_vocab() const noexcept { return n_vocab_; }

    // Above this, candidates() is no faster than taking all tokens.
    int32_t max_candidates() const noexcept { return static_cast<int32_t>(block_max_.size() / 2); }

    // -inf is legal (a model may mask tokens), NaN and +inf are not. A row of equal logits is what an aborted or failed
    // computation leaves in a buffer, never what a model says.
    LogitFault fault() const noexcept { return fault_; }

    // The token of the largest logit, the first of equals; there must be no fault.
    llama_token argmax() const;

    // At least `count` tokens, the `count` likeliest among them, in the vocabulary's order; all if there are no more.
    std::vector<llama_token> candidates(int32_t count) const;

    // Logarithm of the sum of exponentials: a logit less this is a logprob of the model's own distribution, before
    // biases, penalties and temperature.
    float log_norm() const;

    // The `count` likeliest and their logprobs, likeliest first.
    std::vector<TokenLogprob> top(int32_t count, float log_norm) const;

  private:
    const float * data_;
    int32_t n_vocab_;
    LogitFault fault_ = LogitFault::none;
    float max_;
    std::vector<float> block_max_;
};

} // namespace pyllmcancel
