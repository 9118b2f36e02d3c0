#include "sampling/sampler.hpp"

#include "llama-vocab.h"
#include "model/tokens.hpp"
#include "platform/errors.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace pyllmcancel {
namespace {

// This number of the likeliest tokens that a grammar allows is enough, unless the chain says how many it can use:
// asking the grammar about a whole vocabulary takes a tenth of a second.
constexpr std::size_t MAX_BY_GRAMMAR = 1024;

} // namespace

Sampler::Sampler(std::shared_ptr<const Model> model, const SamplingParams & params, const Sampler * sibling)
    : model_(std::move(model)), params_(params), n_vocab_(llama_vocab_n_tokens(model_->vocab())),
      chain_(*model_, params_) {
    for (const llama_logit_bias & bias : params_.logit_bias) {
        if (bias.token < 0 || bias.token >= n_vocab_) {
            throw UsageError("logit_bias names token " + std::to_string(bias.token) +
                             ", which is not in the vocabulary");
        }
    }
    if (!params_.grammar.empty()) {
        start_grammar(sibling);
    }
}

void Sampler::start_grammar(const Sampler * sibling) {
    const bool shared = sibling != nullptr && sibling->compiled_;
    compiled_ = shared ? sibling->compiled_ : std::make_shared<const Grammar>(model_->vocab(), params_.grammar);
    grammar_ = std::make_unique<GrammarMatcher>(compiled_);
    if (!params_.grammar_triggers.empty()) {
        const bool same = shared && sibling->triggers_;
        triggers_ =
            same ? sibling->triggers_ : std::make_shared<const GrammarTriggers>(params_.grammar_triggers, n_vocab_);
        alarm_ = std::make_unique<GrammarAlarm>(triggers_, ThinkingMarks{params_.thinking_start, params_.thinking_ends},
                                                params_.grammar_prefix);
    } else if (!grammar_->read(params_.grammar_prefix)) {
        throw UsageError("the grammar does not allow what the prompt begins the answer with");
    }
}

// Passes the token on to the grammar; an inactive one may become active. The text of its trigger may violate it: then
// the answer continues without the grammar.
void Sampler::follow(llama_token token) {
    if (!grammar_ || llama_vocab_is_eog(model_->vocab(), token)) {
        return;
    }
    if (!alarm_) {
        grammar_->accept(token);
        return;
    }
    const auto heard = alarm_->hear(token, compiled_->vocab()->token_to_piece(token));
    if (heard) {
        alarm_.reset();
        if (!grammar_->read(*heard)) {
            grammar_.reset();
        }
    }
}

void Sampler::accept_prompt(const std::vector<llama_token> & tokens) {
    check_tokens(tokens, model_->vocab());
    for (const llama_token token : tokens) {
        chain_.accept_prompt(token);
    }
}

bool Sampler::allowed(llama_token token) const {
    const auto word = static_cast<std::size_t>(token) / 32;
    return word < mask_.size() && ((mask_[word] >> (static_cast<uint32_t>(token) % 32)) & 1U) != 0;
}

bool Sampler::grammar_allows(llama_token token) {
    return llama_vocab_is_eog(model_->vocab(), token) ? grammar_->may_end() : grammar_->allows(token);
}

// Fills in the candidates of the chain: all that are allowed, or no more than a chain that begins with top-k can use. A
// biased token may have dropped out of the k likeliest, so there is one more for each, and the biased ones themselves.
void Sampler::fill(const Logits & logits) {
    const int32_t kept = mask_.empty() ? chain_.n_candidates() : 0;
    const int64_t count = int64_t{kept} + static_cast<int64_t>(chain_.biases().size());
    if (kept == 0 || count > logits.max_candidates()) {
        fill_all(logits);
        return;
    }
    std::vector<llama_token> tokens = logits.candidates(static_cast<int32_t>(count));
    const auto n_likeliest = static_cast<std::ptrdiff_t>(tokens.size());
    for (const llama_logit_bias & bias : chain_.biases()) {
        tokens.push_back(bias.token);
    }
    std::inplace_merge(tokens.begin(), tokens.begin() + n_likeliest, tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    fill_with(logits, tokens);
}

// In the order of the vocabulary, as fill_all(): of equals, the first one is taken.
void Sampler::fill_with(const Logits & logits, const std::vector<llama_token> & tokens) {
    candidates_.clear();
    for (const llama_token token : tokens) {
        candidates_.push_back({token, logits[token], 0.0F});
    }
}

void Sampler::fill_all(const Logits & logits) {
    candidates_.resize(static_cast<std::size_t>(n_vocab_));
    for (llama_token token = 0; token < n_vocab_; ++token) {
        candidates_[static_cast<std::size_t>(token)] = {token, logits[token], 0.0F};
    }
    if (!mask_.empty()) {
        const auto barred = [this](const llama_token_data & candidate) { return !allowed(candidate.id); };
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), barred), candidates_.end());
    }
}

// The likeliest tokens that the grammar allows, and all allowed tokens that have a bias. Searched from the likeliest on: asking the
// grammar is slow. When its fuel is spent, what was found by then is enough.
void Sampler::fill_allowed(const Logits & logits) {
    std::set<llama_token> found;
    try {
        add_allowed(logits, found);
    } catch (const GrammarTooComplex &) {
        if (found.empty()) {
            throw;
        }
    }
    grammar_->begin();
    fill_with(logits, {found.begin(), found.end()});
}

void Sampler::add_allowed(const Logits & logits, std::set<llama_token> & found) {
    const auto kept = static_cast<std::size_t>(chain_.n_candidates());
    const std::size_t wanted = (kept > 0 ? kept : MAX_BY_GRAMMAR) + chain_.biases().size();
    const auto less_likely = [&](llama_token a, llama_token b) {
        return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
    };
    std::vector<llama_token> heap;
    for (llama_token token = 0; token < n_vocab_; ++token) {
        const bool candidate = grammar_->may_begin(token) || llama_vocab_is_eog(model_->vocab(), token);
        if (candidate && (mask_.empty() || allowed(token))) {
            heap.push_back(token);
        }
    }
    std::make_heap(heap.begin(), heap.end(), less_likely);
    while (!heap.empty() && found.size() < wanted && logits[heap.front()] != -INFINITY) {
        std::pop_heap(heap.begin(), heap.end(), less_likely);
        if (grammar_allows(heap.back())) {
            found.insert(heap.back());
        }
        heap.pop_back();
    }
    for (const llama_logit_bias & bias : chain_.biases()) {
        if ((mask_.empty() || allowed(bias.token)) && grammar_allows(bias.token)) {
            found.insert(bias.token);
        }
    }
}

// Returns -1 if nothing is left to choose.
llama_token Sampler::run_chain(Sampled & sampled) {
    chain_.apply_biases(candidates_);
    if (candidates_.empty()) {
        return -1;
    }
    llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
    chain_.apply(array);
    sampled.token = array.data[array.selected].id;
    if (params_.logprobs_after_sampling && reports_logprobs()) {
        report_after_sampling(sampled, array);
    }
    return sampled.token;
}

llama_token Sampler::choose(const Logits & logits, Sampled & sampled) {
    if (chain_.is_plain_greedy() && !is_constrained() && mask_.empty() && !params_.logprobs_after_sampling) {
        const llama_token token = logits.argmax();
        follow(token);
        return token;
    }
    fill(logits);
    llama_token token = run_chain(sampled);
    if (is_constrained() && (token < 0 || !grammar_allows(token))) {
        // Asked only now: mostly the grammar allows the token that was chosen without it.
        fill_allowed(logits);
        token = run_chain(sampled);
        // llama.cpp's sampler "infill" may choose an end token that was no candidate.
        token = token >= 0 && grammar_allows(token) ? token : -1;
    }
    if (token >= 0 && !mask_.empty() && !allowed(token)) {
        token = -1;
    }
    if (token < 0 && params_.ignore_eos && is_constrained() && grammar_->may_end() && mask_.empty()) {
        // The grammar is complete: an answer that would rather continue cannot.
        token = sampled.token = llama_vocab_eos(model_->vocab());
    }
    if (token >= 0) {
        follow(token);
        chain_.accept(token);
    }
    return token;
}

void Sampler::report(Sampled & sampled, const Logits & logits) const {
    const float log_norm = logits.log_norm();
    sampled.logprob = logits[sampled.token] - log_norm;
    sampled.top = logits.top(std::max(params_.n_logprobs, 0), log_norm);
}

// At temperature 0 only the likeliest token is left, and its logprob is 0.
void Sampler::report_after_sampling(Sampled & sampled, const llama_token_data_array & left) const {
    sampled.top.clear();
    if (chain_.is_greedy()) {
        sampled.logprob = 0.0F;
        sampled.top.resize(std::min(params_.n_logprobs, 1), {sampled.token, 0.0F});
        return;
    }
    double sum = 0.0;
    const float max = std::max_element(left.data, left.data + left.size, [](const auto & a, const auto & b) {
                          return a.logit < b.logit;
                      })->logit;
    for (std::size_t i = 0; i < left.size; ++i) {
        sum += std::exp(left.data[i].logit - max);
    }
    const float log_norm = max + static_cast<float>(std::log(sum));
    sampled.logprob = left.data[left.selected].logit - log_norm;
    for (std::size_t i = 0; i < left.size; ++i) {
        if (left.data[i].logit != -INFINITY) {
            sampled.top.push_back({left.data[i].id, left.data[i].logit - log_norm});
        }
    }
    std::sort(sampled.top.begin(), sampled.top.end(),
              [](const TokenLogprob & a, const TokenLogprob & b) { return a.logprob > b.logprob; });
    sampled.top.resize(std::min(sampled.top.size(), static_cast<std::size_t>(params_.n_logprobs)));
}

Sampled Sampler::sample(const float * row) {
    const Logits logits(row, n_vocab_);
    Sampled sampled;
    sampled.fault = logits.fault();
    if (sampled.fault != LogitFault::none) {
        return sampled;
    }
    if (grammar_) {
        grammar_->begin();
    }
    mask_.clear();
    if (!masks_.empty()) {
        mask_ = std::move(masks_.front());
        masks_.pop_front();
    }
    try {
        sampled.token = choose(logits, sampled);
    } catch (const GrammarTooComplex &) {
        sampled = {};
        sampled.fault = LogitFault::too_complex;
        return sampled;
    }
    if (sampled.token < 0) {
        sampled.fault = LogitFault::grammar;
    } else if (reports_logprobs() && !params_.logprobs_after_sampling) {
        report(sampled, logits);
    }
    return sampled;
}

Sampled Sampler::describe(const float * row, llama_token token) const {
    const Logits logits(row, n_vocab_);
    Sampled described;
    described.fault = logits.fault();
    described.token = token;
    if (described.fault == LogitFault::none) {
        report(described, logits);
    }
    return described;
}

} // namespace pyllmcancel
