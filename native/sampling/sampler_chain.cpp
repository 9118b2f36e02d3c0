#include "sampling/sampler_chain.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace pyllmcancel {
namespace {

constexpr int32_t MAX_INFILL = 256;
// Far from the infinity of which a softmax makes NaN, also after a division by the least temperature.
constexpr float MAX_BIAS = 1e30F;
constexpr float LEAST_TEMPERATURE = 1e-6F; // lower ones take the likeliest token
constexpr int32_t MIROSTAT_M = 100; // tokens in Mirostat 1's estimate; the paper's value

} // namespace

SamplerChain::SamplerChain(const Model & model, const SamplingParams & params)
    : model_(model), params_(params), greedy_(params.temperature < LEAST_TEMPERATURE) {
    llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
    chain_params.no_perf = true;
    chain_.reset(llama_sampler_chain_init(chain_params));
    sum_biases();
    for (const std::string & name : params_.samplers) {
        add_named(name);
    }
    add_choice();
}

void SamplerChain::accept_prompt(llama_token token) {
    for (llama_sampler * sampler : history_samplers_) {
        llama_sampler_accept(sampler, token);
    }
}

// Biases of the same token add up, and a ban stays one.
void SamplerChain::sum_biases() {
    std::map<llama_token, float> sums;
    for (const llama_logit_bias & bias : params_.logit_bias) {
        float & sum = sums[bias.token];
        sum = sum == -INFINITY || bias.bias == -INFINITY ? -INFINITY : std::clamp(sum + bias.bias, -MAX_BIAS, MAX_BIAS);
    }
    const int32_t n_vocab = llama_vocab_n_tokens(model_.vocab());
    for (llama_token token = 0; params_.ignore_eos && token < n_vocab; ++token) {
        if (llama_vocab_is_eog(model_.vocab(), token)) {
            sums[token] = -INFINITY;
        }
    }
    for (const auto & [token, bias] : sums) {
        biases_.push_back({token, bias});
    }
}

void SamplerChain::apply_biases(std::vector<llama_token_data> & candidates) const {
    auto candidate = candidates.begin();
    for (const llama_logit_bias & bias : biases_) {
        while (candidate != candidates.end() && candidate->id < bias.token) {
            ++candidate;
        }
        if (candidate != candidates.end() && candidate->id == bias.token) {
            candidate->logit += bias.bias;
        }
    }
    const auto impossible = [](const llama_token_data & data) { return data.logit == -INFINITY; };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), impossible), candidates.end());
}

// Truncations are left out where their parameter turns them off, where Mirostat replaces them, and in a greedy chain.
void SamplerChain::add_named(const std::string & name) {
    const auto keep = static_cast<std::size_t>(params_.min_keep);
    if (name == "penalties") {
        add_penalties();
    } else if (name == "dry") {
        add_dry();
    } else if (greedy_ || params_.mirostat != 0) {
        return;
    } else if (name == "top_n_sigma" && params_.top_n_sigma > 0.0F) {
        add(llama_sampler_init_top_n_sigma(params_.top_n_sigma));
    } else if (name == "top_k" && params_.top_k > 0) {
        n_candidates_ = size() == 0 ? params_.top_k : n_candidates_;
        add(llama_sampler_init_top_k(params_.top_k));
    } else if (name == "typ_p" && params_.typical_p < 1.0F) {
        add(llama_sampler_init_typical(params_.typical_p, keep));
    } else if (name == "top_p" && params_.top_p < 1.0F) {
        add(llama_sampler_init_top_p(params_.top_p, keep));
    } else if (name == "min_p" && params_.min_p > 0.0F) {
        add(llama_sampler_init_min_p(params_.min_p, keep));
    } else if (name == "xtc" && params_.xtc_probability > 0.0F) {
        add(llama_sampler_init_xtc(params_.xtc_probability, params_.xtc_threshold, keep, params_.seed));
    } else if (name == "infill") {
        // It compares every candidate with every other.
        add(llama_sampler_init_top_k(params_.top_k > 0 ? std::min(params_.top_k, MAX_INFILL) : MAX_INFILL));
        add(llama_sampler_init_infill(model_.vocab()));
    } else if (name == "temperature") {
        add(llama_sampler_init_temp_ext(params_.temperature, params_.dynatemp_range, params_.dynatemp_exponent));
    }
}

void SamplerChain::add_penalties() {
    const bool penalised =
        params_.repeat_penalty != 1.0F || params_.frequency_penalty != 0.0F || params_.presence_penalty != 0.0F;
    if (penalised && params_.penalty_last_n != 0) {
        add(llama_sampler_init_penalties(llama_vocab_n_tokens(model_.vocab()), window(params_.penalty_last_n),
                                         params_.repeat_penalty, params_.frequency_penalty, params_.presence_penalty));
        history_samplers_.push_back(llama_sampler_chain_get(chain_.get(), size() - 1));
    }
}

void SamplerChain::add_dry() {
    if (params_.dry_multiplier <= 0.0F || params_.dry_penalty_last_n == 0) {
        return;
    }
    std::vector<const char *> breakers;
    for (const std::string & breaker : params_.dry_sequence_breakers) {
        breakers.push_back(breaker.c_str());
    }
    add(llama_sampler_init_dry(model_.vocab(), params_.dry_multiplier, params_.dry_base, params_.dry_allowed_length,
                               window(params_.dry_penalty_last_n), breakers.data(), breakers.size()));
    history_samplers_.push_back(llama_sampler_chain_get(chain_.get(), size() - 1));
}

void SamplerChain::add_choice() {
    if (greedy_) {
        n_candidates_ = size() == 0 ? 1 : 0;
        add(llama_sampler_init_greedy());
        return;
    }
    if (params_.mirostat != 0) {
        add(llama_sampler_init_temp(params_.temperature));
    }
    if (params_.mirostat == 1) {
        add(llama_sampler_init_mirostat(llama_vocab_n_tokens(model_.vocab()), params_.seed, params_.mirostat_tau,
                                        params_.mirostat_eta, MIROSTAT_M));
    } else if (params_.mirostat == 2) {
        add(llama_sampler_init_mirostat_v2(params_.seed, params_.mirostat_tau, params_.mirostat_eta));
    } else {
        add(llama_sampler_init_dist(params_.seed));
    }
}

// A negative window means everything; llama.cpp keeps a ring of that length, so give it the context's.
int32_t SamplerChain::window(int32_t last_n) const {
    const int32_t context = llama_model_n_ctx_train(model_.handle());
    return last_n < 0 ? context : std::min(last_n, context);
}

} // namespace pyllmcancel
