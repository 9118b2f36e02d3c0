#pragma once

#include "model.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pyllmcancel {

struct SamplingParams {
    float temperature = 0.8F; // <= 0 takes the likeliest token
    int32_t top_k = 40;       // <= 0 keeps the whole vocabulary
    float top_p = 0.95F;
    float min_p = 0.05F;
    float typical_p = 1.0F;
    float repeat_penalty = 1.0F;
    float frequency_penalty = 0.0F;
    float presence_penalty = 0.0F;
    int32_t penalty_last_n = 64; // < 0 looks at the whole context
    uint32_t seed = 0;
    bool ignore_eos = false;
    std::vector<llama_logit_bias> logit_bias;
    std::string grammar; // GBNF, root rule "root"; empty for none
    int32_t n_logprobs = -1; // alternatives to report beside the chosen token; < 0 computes no logprobs at all
};

// Why a row of logits could not be sampled. The request that got it fails; no other does.
enum class LogitFault : int32_t { none = 0, not_finite = 1, all_equal = 2, grammar = 3 };

struct TokenLogprob {
    llama_token token;
    float logprob; // natural logarithm, of the model's own distribution: before biases, penalties and temperature
};

struct Sampled {
    llama_token token = -1;
    LogitFault fault = LogitFault::none;
    float logprob = 0.0F;
    std::vector<TokenLogprob> top; // likeliest first
};

// One request's sampler: its own random state, its own penalties, its own grammar. Which other sequences share the
// batch cannot be seen from here, so the same seed gives the same text in any company.
class Sampler {
  public:
    // Throws UsageError for a grammar that llama.cpp cannot parse.
    Sampler(std::shared_ptr<const Model> model, const SamplingParams & params);

    // Let penalties see a prompt. Grammars see generated tokens only. Throws UsageError for a token out of range.
    void accept_prompt(const std::vector<llama_token> & tokens);

    bool reports_logprobs() const noexcept { return params_.n_logprobs >= 0; }

    // Chooses the next token from one row of logits, length n_vocab.
    Sampled sample(const float * logits);

  private:
    struct Free {
        void operator()(llama_sampler * sampler) const noexcept { llama_sampler_free(sampler); }
    };
    using Chain = std::unique_ptr<llama_sampler, Free>;

    void build_chain();
    void add(llama_sampler * sampler);
    std::vector<llama_logit_bias> biases() const;
    bool is_plain_greedy() const noexcept;
    llama_token choose(const float * logits);

    std::shared_ptr<const Model> model_;
    SamplingParams params_;
    int32_t n_vocab_;
    Chain chain_;
    Chain grammar_;
    llama_sampler * penalties_ = nullptr; // owned by chain_
    std::vector<llama_token_data> candidates_;
};

} // namespace pyllmcancel
