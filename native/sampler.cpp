#include "sampler.hpp"

#include "errors.hpp"
#include "log.hpp"

#include <algorithm>
#include <cmath>

namespace pyllmcancel {
namespace {

struct LogitRange {
    LogitFault fault;
    float max;
};

// -inf is legal (a model may mask tokens), NaN and +inf are not. A row of equal logits is what an aborted or failed
// computation leaves in a buffer, never what a model says.
LogitRange check(const float * logits, int32_t n_vocab) {
    float min = logits[0];
    float max = logits[0];
    bool has_nan = false;
    for (int32_t i = 0; i < n_vocab; ++i) {
        has_nan |= logits[i] != logits[i];
        min = std::min(min, logits[i]);
        max = std::max(max, logits[i]);
    }
    if (has_nan || !std::isfinite(max)) {
        return {LogitFault::not_finite, max};
    }
    return {min == max && n_vocab > 1 ? LogitFault::all_equal : LogitFault::none, max};
}

float log_sum_exp(const float * logits, int32_t n_vocab, float max) {
    double sum = 0.0;
    for (int32_t i = 0; i < n_vocab; ++i) {
        sum += std::exp(logits[i] - max);
    }
    return max + static_cast<float>(std::log(sum));
}

std::vector<TokenLogprob> likeliest(const float * logits, int32_t n_vocab, float log_norm, int32_t count) {
    std::vector<llama_token> ids(static_cast<std::size_t>(n_vocab));
    for (int32_t i = 0; i < n_vocab; ++i) {
        ids[static_cast<std::size_t>(i)] = i;
    }
    const auto end = ids.begin() + std::min(count, n_vocab);
    std::partial_sort(ids.begin(), end, ids.end(), [&](llama_token a, llama_token b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
    std::vector<TokenLogprob> top;
    std::transform(ids.begin(), end, std::back_inserter(top),
                   [&](llama_token id) { return TokenLogprob{id, logits[id] - log_norm}; });
    return top;
}

} // namespace

Sampler::Sampler(std::shared_ptr<const Model> model, const SamplingParams & params)
    : model_(std::move(model)), params_(params), n_vocab_(llama_vocab_n_tokens(model_->vocab())) {
    for (const llama_logit_bias & bias : params_.logit_bias) {
        if (bias.token < 0 || bias.token >= n_vocab_) {
            throw UsageError("logit_bias names token " + std::to_string(bias.token) +
                             ", which is not in the vocabulary");
        }
    }
    if (!params_.grammar.empty()) {
        clear_log_errors();
        grammar_.reset(llama_sampler_init_grammar(model_->vocab(), params_.grammar.c_str(), "root"));
        if (!grammar_) {
            throw UsageError("the grammar could not be parsed: " + log_errors());
        }
    }
    build_chain();
}

void Sampler::add(llama_sampler * sampler) { llama_sampler_chain_add(chain_.get(), sampler); }

std::vector<llama_logit_bias> Sampler::biases() const {
    std::vector<llama_logit_bias> all = params_.logit_bias;
    if (params_.ignore_eos) {
        for (llama_token token = 0; token < n_vocab_; ++token) {
            if (llama_vocab_is_eog(model_->vocab(), token)) {
                all.push_back({token, -INFINITY});
            }
        }
    }
    return all;
}

void Sampler::build_chain() {
    llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
    chain_params.no_perf = true;
    chain_.reset(llama_sampler_chain_init(chain_params));
    const std::vector<llama_logit_bias> bias = biases();
    if (!bias.empty()) {
        add(llama_sampler_init_logit_bias(n_vocab_, static_cast<int32_t>(bias.size()), bias.data()));
    }
    const bool penalised =
        params_.repeat_penalty != 1.0F || params_.frequency_penalty != 0.0F || params_.presence_penalty != 0.0F;
    if (penalised && params_.penalty_last_n != 0) {
        // A negative window means everything; llama.cpp keeps a ring of that length, so give it the context's.
        const int32_t window =
            params_.penalty_last_n < 0 ? llama_model_n_ctx_train(model_->handle()) : params_.penalty_last_n;
        penalties_ = llama_sampler_init_penalties(n_vocab_, window, params_.repeat_penalty, params_.frequency_penalty,
                                                  params_.presence_penalty);
        add(penalties_);
    }
    if (params_.temperature <= 0.0F) {
        add(llama_sampler_init_greedy());
        return;
    }
    if (params_.top_k > 0) {
        add(llama_sampler_init_top_k(params_.top_k));
    }
    if (params_.typical_p < 1.0F) {
        add(llama_sampler_init_typical(params_.typical_p, 1));
    }
    if (params_.top_p < 1.0F) {
        add(llama_sampler_init_top_p(params_.top_p, 1));
    }
    if (params_.min_p > 0.0F) {
        add(llama_sampler_init_min_p(params_.min_p, 1));
    }
    add(llama_sampler_init_temp(params_.temperature));
    add(llama_sampler_init_dist(params_.seed));
}

bool Sampler::is_plain_greedy() const noexcept {
    return params_.temperature <= 0.0F && !grammar_ && llama_sampler_chain_n(chain_.get()) == 1;
}

void Sampler::accept_prompt(const std::vector<llama_token> & tokens) {
    for (const llama_token token : tokens) {
        if (token < 0 || token >= n_vocab_) {
            throw UsageError("token " + std::to_string(token) + " is not in the vocabulary");
        }
        if (penalties_) {
            llama_sampler_accept(penalties_, token);
        }
    }
}

llama_token Sampler::choose(const float * logits) {
    if (is_plain_greedy()) {
        return static_cast<llama_token>(std::max_element(logits, logits + n_vocab_) - logits);
    }
    candidates_.resize(static_cast<std::size_t>(n_vocab_));
    for (int32_t i = 0; i < n_vocab_; ++i) {
        candidates_[static_cast<std::size_t>(i)] = {i, logits[i], 0.0F};
    }
    llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
    if (grammar_) {
        llama_sampler_apply(grammar_.get(), &array);
        const auto allowed = [](const llama_token_data & candidate) { return std::isfinite(candidate.logit); };
        if (std::none_of(candidates_.begin(), candidates_.end(), allowed)) {
            return -1;
        }
    }
    llama_sampler_apply(chain_.get(), &array);
    // Greedy and dist choose something even if biases have banned all that was left; a grammar that is then given a
    // token which it does not allow throws.
    if (array.selected < 0 || array.data[array.selected].logit == -INFINITY) {
        return -1;
    }
    const llama_token token = array.data[array.selected].id;
    if (grammar_) {
        llama_sampler_accept(grammar_.get(), token);
    }
    llama_sampler_accept(chain_.get(), token);
    return token;
}

Sampled Sampler::sample(const float * logits) {
    Sampled sampled;
    const LogitRange range = check(logits, n_vocab_);
    sampled.fault = range.fault;
    if (range.fault != LogitFault::none) {
        return sampled;
    }
    sampled.token = choose(logits);
    if (sampled.token < 0) {
        sampled.fault = LogitFault::grammar;
        return sampled;
    }
    if (params_.n_logprobs >= 0) {
        const float log_norm = log_sum_exp(logits, n_vocab_, range.max);
        sampled.logprob = logits[sampled.token] - log_norm;
        sampled.top = likeliest(logits, n_vocab_, log_norm, params_.n_logprobs);
    }
    return sampled;
}

} // namespace pyllmcancel
