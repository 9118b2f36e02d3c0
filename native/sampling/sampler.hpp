#pragma once

#include "grammar/grammar_matcher.hpp"
#include "grammar/grammar_triggers.hpp"
#include "model/model.hpp"
#include "sampling/logits.hpp"
#include "sampling/sampler_chain.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

namespace pyllmcancel {

struct Sampled {
    llama_token token = -1;
    LogitFault fault = LogitFault::none;
    float logprob = 0.0F;
    std::vector<TokenLogprob> top; // likeliest first
};

// One request's sampler: its own random state, penalties and grammar. The same logits and the same seed give the same
// text, whichever other sequences share the batch.
class Sampler {
  public:
    // Throws UsageError for a grammar that cannot be parsed. The choices of a request share the compiled grammar: the
    // `sibling` is the sampler of another one.
    Sampler(std::shared_ptr<const Model> model, const SamplingParams & params, const Sampler * sibling = nullptr);

    // Penalties see the prompt, grammars do not. Throws UsageError for a token that is not in the vocabulary.
    void accept_prompt(const std::vector<llama_token> & tokens);

    bool reports_logprobs() const noexcept { return params_.n_logprobs >= 0; }

    // Allow, in the next choices only, the tokens whose bits are set, lowest bit first: a mask for each choice. An empty
    // one allows all.
    void restrict_to(std::deque<std::vector<uint32_t>> masks) { masks_ = std::move(masks); }

    // Chooses the next token from one row of logits, length n_vocab.
    Sampled sample(const float * row);

    // The logprob of `token`, which came next, in the model's own distribution.
    Sampled describe(const float * row, llama_token token) const;

  private:
    void fill(const Logits & logits);
    void fill_all(const Logits & logits);
    void fill_with(const Logits & logits, const std::vector<llama_token> & tokens);
    void fill_allowed(const Logits & logits);
    void add_allowed(const Logits & logits, std::set<llama_token> & found);
    bool allowed(llama_token token) const;
    bool grammar_allows(llama_token token);
    bool is_constrained() const noexcept { return grammar_ && !alarm_; }
    void start_grammar(const Sampler * sibling);
    void follow(llama_token token);
    llama_token run_chain(Sampled & sampled);
    llama_token choose(const Logits & logits, Sampled & sampled);
    void report(Sampled & sampled, const Logits & logits) const;
    void report_after_sampling(Sampled & sampled, const llama_token_data_array & left) const;

    std::shared_ptr<const Model> model_;
    const SamplingParams params_;
    int32_t n_vocab_;
    SamplerChain chain_;
    std::shared_ptr<const Grammar> compiled_; // for siblings
    std::unique_ptr<GrammarMatcher> grammar_;
    std::shared_ptr<const GrammarTriggers> triggers_;
    std::unique_ptr<GrammarAlarm> alarm_; // while the grammar sleeps
    std::deque<std::vector<uint32_t>> masks_; // of the next choices
    std::vector<uint32_t> mask_; // of the present one
    std::vector<llama_token_data> candidates_;
};

} // namespace pyllmcancel
