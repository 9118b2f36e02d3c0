#include "sampling_cost.hpp"

#include "clock.hpp"

#include <stdexcept>

namespace probe {
namespace {

struct FreeChain {
    void operator()(llama_sampler * chain) const noexcept { llama_sampler_free(chain); }
};
using Chain = std::unique_ptr<llama_sampler, FreeChain>;

// In the order of llama.cpp's defaults, which put each of these into the chain whether it changes anything or not.
Chain make_chain(const pyllmcancel::Model & model, const pyllmcancel::SamplingParams & params) {
    llama_sampler_chain_params chain_params = llama_sampler_chain_default_params();
    chain_params.no_perf = true;
    Chain chain(llama_sampler_chain_init(chain_params));
    const auto add = [&](llama_sampler * sampler) { llama_sampler_chain_add(chain.get(), sampler); };
    const int32_t n_vocab = llama_vocab_n_tokens(model.vocab());
    add(llama_sampler_init_penalties(n_vocab, params.penalty_last_n, params.repeat_penalty, params.frequency_penalty,
                                     params.presence_penalty));
    if (params.temperature <= 0.0F) {
        add(llama_sampler_init_greedy());
        return chain;
    }
    add(llama_sampler_init_top_k(params.top_k));
    add(llama_sampler_init_typical(params.typical_p, 1));
    add(llama_sampler_init_top_p(params.top_p, 1));
    add(llama_sampler_init_min_p(params.min_p, 1));
    add(llama_sampler_init_temp_ext(params.temperature, 0.0F, 1.0F));
    add(llama_sampler_init_dist(params.seed));
    return chain;
}

void check_size(const pyllmcancel::Model & model, const std::vector<float> & logits) {
    if (logits.size() != static_cast<std::size_t>(llama_vocab_n_tokens(model.vocab()))) {
        throw std::invalid_argument("one logit for each token of the vocabulary is needed");
    }
}

} // namespace

std::vector<int64_t> sampler_times(const std::shared_ptr<pyllmcancel::Model> & model,
                                   const pyllmcancel::SamplingParams & params, const std::vector<float> & logits,
                                   int32_t count) {
    check_size(*model, logits);
    pyllmcancel::Sampler sampler(model, params);
    std::vector<int64_t> times;
    for (int32_t i = 0; i < count; ++i) {
        const int64_t begin = now_ns();
        const pyllmcancel::Sampled sampled = sampler.sample(logits.data());
        times.push_back(now_ns() - begin);
        if (sampled.token < 0) {
            throw std::runtime_error("the sampler refused these logits");
        }
    }
    return times;
}

std::vector<int64_t> chain_times(const std::shared_ptr<pyllmcancel::Model> & model,
                                 const pyllmcancel::SamplingParams & params, const std::vector<float> & logits,
                                 int32_t count) {
    check_size(*model, logits);
    const Chain chain = make_chain(*model, params);
    std::vector<llama_token_data> candidates(logits.size());
    std::vector<int64_t> times;
    for (int32_t i = 0; i < count; ++i) {
        const int64_t begin = now_ns();
        for (std::size_t token = 0; token < logits.size(); ++token) {
            candidates[token] = {static_cast<llama_token>(token), logits[token], 0.0F};
        }
        llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
        llama_sampler_apply(chain.get(), &array);
        llama_sampler_accept(chain.get(), array.data[array.selected].id);
        times.push_back(now_ns() - begin);
    }
    return times;
}

} // namespace probe
