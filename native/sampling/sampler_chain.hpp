#pragma once

#include "model/model.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pyllmcancel {

struct SamplingParams {
    float temperature = 0.8F; // below 1e-6, without Mirostat, takes the likeliest token
    int32_t top_k = 40;       // <= 0 keeps the whole vocabulary
    float top_p = 0.95F;
    float min_p = 0.05F;
    float typical_p = 1.0F;
    float top_n_sigma = -1.0F; // <= 0 is off
    float dynatemp_range = 0.0F;
    float dynatemp_exponent = 1.0F;
    float xtc_probability = 0.0F;
    float xtc_threshold = 0.1F;
    int32_t min_keep = 0;
    int32_t mirostat = 0; // 1 or 2: instead of truncation
    float mirostat_tau = 5.0F;
    float mirostat_eta = 0.1F;
    float repeat_penalty = 1.0F;
    float frequency_penalty = 0.0F;
    float presence_penalty = 0.0F;
    int32_t penalty_last_n = 64; // < 0 looks at the whole context
    float dry_multiplier = 0.0F;
    float dry_base = 1.75F;
    int32_t dry_allowed_length = 2;
    int32_t dry_penalty_last_n = -1; // < 0 looks at the whole context
    std::vector<std::string> dry_sequence_breakers;
    std::vector<std::string> samplers; // which of them, in which order; llama-server's names
    uint32_t seed = 0;
    bool ignore_eos = false;
    std::vector<llama_logit_bias> logit_bias;
    std::string grammar;     // GBNF, root rule "root"; empty for none
    std::string grammar_prefix; // the beginning of the answer that the prompt contains, and the grammar, too
    // kind and value; until one is found, the grammar is inactive
    std::vector<std::pair<std::string, std::string>> grammar_triggers;
    std::string thinking_start; // marks of reasoning, inside which no trigger counts
    std::vector<std::string> thinking_ends;
    int32_t n_logprobs = -1; // alternatives to report beside the chosen token; < 0 computes no logprobs at all
    bool logprobs_after_sampling = false; // after truncation and temperature, instead of the model's own
};

// Biases, then llama.cpp's samplers, for one request's parameters.
class SamplerChain {
  public:
    SamplerChain(const Model & model, const SamplingParams & params);

    bool is_greedy() const noexcept { return greedy_; }

    // Returns whether the choice is simply the largest logit.
    bool is_plain_greedy() const noexcept { return greedy_ && size() == 1 && biases_.empty(); }

    // How many of the likeliest tokens the chain chooses from, if only biases come before top-k or the choice of the
    // largest; 0 for all.
    int32_t n_candidates() const noexcept { return n_candidates_; }

    // In the order of the tokens, each once.
    const std::vector<llama_logit_bias> & biases() const noexcept { return biases_; }

    // For the samplers that look at past tokens.
    void accept_prompt(llama_token token);
    void accept(llama_token token) { llama_sampler_accept(chain_.get(), token); }

    // Removes the candidates without a chance: llama.cpp's samplers make NaN of a row that has no other. `candidates` are in
    // the order of the tokens.
    void apply_biases(std::vector<llama_token_data> & candidates) const;
    void apply(llama_token_data_array & candidates) { llama_sampler_apply(chain_.get(), &candidates); }

  private:
    struct Free {
        void operator()(llama_sampler * sampler) const noexcept { llama_sampler_free(sampler); }
    };

    int32_t size() const noexcept { return llama_sampler_chain_n(chain_.get()); }
    void add(llama_sampler * sampler) { llama_sampler_chain_add(chain_.get(), sampler); }
    void sum_biases();
    void add_named(const std::string & name);
    void add_penalties();
    void add_dry();
    void add_choice();
    int32_t window(int32_t last_n) const;

    const Model & model_;
    const SamplingParams & params_;
    bool greedy_;
    int32_t n_candidates_ = 0;
    std::vector<llama_logit_bias> biases_;
    std::unique_ptr<llama_sampler, Free> chain_;
    std::vector<llama_sampler *> history_samplers_; // owned by chain_; they look at past tokens
};

} // namespace pyllmcancel
