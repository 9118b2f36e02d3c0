#pragma once

#include "cancel_flag.hpp"
#include "grammar_matcher.hpp"
#include "logits.hpp"
#include "model.hpp"
#include "sampler_chain.hpp"

#include <cstdint>
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

// One request's sampler: its own random state, its own penalties, its own grammar. Which other sequences share the
// batch cannot be seen from here, so the same logits and the same seed give the same text.
class Sampler {
  public:
    // Throws UsageError for a grammar that makes no sense. The choices of a request share what it was compiled to, by way
    // of one of their samplers, the `sibling`.
    Sampler(std::shared_ptr<const Model> model, const SamplingParams & params, const Sampler * sibling = nullptr);

    // Let penalties see a prompt. Grammars see generated tokens only. Throws UsageError for a token out of range.
    void accept_prompt(const std::vector<llama_token> & tokens);

    bool reports_logprobs() const noexcept { return params_.n_logprobs >= 0; }

    // Allow, in the next choice only, the tokens whose bits are set, lowest bit first; empty allows all.
    void restrict_to(std::vector<uint32_t> mask) { mask_ = std::move(mask); }

    // Chooses the next token from one row of logits, length n_vocab; none, without a fault, if the flag is raised
    // meanwhile.
    Sampled sample(const float * row, const CancelFlag & flag);

    // What the model itself thought of `token`, which came next.
    Sampled describe(const float * row, llama_token token) const;

  private:
    void fill(const Logits & logits);
    void fill_all(const Logits & logits);
    void fill_by_grammar(const Logits & logits, const CancelFlag & flag);
    void find_by_grammar(const Logits & logits, std::set<llama_token> & found);
    bool allowed(llama_token token) const;
    bool grammar_allows(llama_token token);
    llama_token run_chain(Sampled & sampled);
    llama_token choose(const Logits & logits, Sampled & sampled, const CancelFlag & flag);
    void report(Sampled & sampled, const Logits & logits) const;
    void report_what_was_left(Sampled & sampled, const llama_token_data_array & left) const;

    std::shared_ptr<const Model> model_;
    const SamplingParams params_;
    int32_t n_vocab_;
    SamplerChain chain_;
    std::unique_ptr<GrammarMatcher> grammar_;
    std::vector<uint32_t> mask_;
    std::vector<llama_token_data> candidates_;
};

} // namespace pyllmcancel
