from libc.stdint cimport uint32_t
from libcpp.deque cimport deque
from libcpp.memory cimport shared_ptr
from libcpp.utility cimport move
from libcpp.vector cimport vector

from factories cimport make_sampler
from llama cimport llama_logit_bias, llama_token
from sampler cimport CppSampler, CppSamplingParams


cdef CppSamplingParams sampling_params(object sampling) except *:
    cdef CppSamplingParams params
    cdef llama_logit_bias bias
    params.temperature = sampling.temperature
    params.top_k = sampling.top_k
    params.top_p = sampling.top_p
    params.min_p = sampling.min_p
    params.typical_p = sampling.typical_p
    params.repeat_penalty = sampling.repeat_penalty
    params.frequency_penalty = sampling.frequency_penalty
    params.presence_penalty = sampling.presence_penalty
    params.penalty_last_n = sampling.penalty_last_n
    params.seed = sampling.seed
    params.ignore_eos = sampling.ignore_eos
    params.n_logprobs = -1 if sampling.n_logprobs is None else sampling.n_logprobs
    params.grammar = sampling.grammar.encode()
    params.grammar_prefix = sampling.grammar_prefix.encode()
    params.grammar_triggers = [(kind.encode(), value.encode()) for kind, value in sampling.grammar_triggers]
    params.thinking_start = sampling.thinking_start.encode()
    params.thinking_ends = [end.encode() for end in sampling.thinking_ends]
    params.logprobs_after_sampling = sampling.logprobs_after_sampling
    params.top_n_sigma = sampling.top_n_sigma
    params.dynatemp_range = sampling.dynatemp_range
    params.dynatemp_exponent = sampling.dynatemp_exponent
    params.xtc_probability = sampling.xtc_probability
    params.xtc_threshold = sampling.xtc_threshold
    params.min_keep = sampling.min_keep
    params.mirostat = sampling.mirostat
    params.mirostat_tau = sampling.mirostat_tau
    params.mirostat_eta = sampling.mirostat_eta
    params.dry_multiplier = sampling.dry_multiplier
    params.dry_base = sampling.dry_base
    params.dry_allowed_length = sampling.dry_allowed_length
    params.dry_penalty_last_n = sampling.dry_penalty_last_n
    params.dry_sequence_breakers = [breaker.encode() for breaker in sampling.dry_sequence_breakers]
    params.samplers = [name.encode() for name in sampling.samplers]
    for token, value in sampling.logit_bias:
        bias.token = token
        bias.bias = value
        params.logit_bias.push_back(bias)
    return params


cdef class Sampler:
    """One request's sampler: its own random state, penalties and grammar."""

    cdef shared_ptr[CppSampler] c_obj

    def __cinit__(self, Model model not None, sampling, Sampler sibling=None):
        cdef CppSamplingParams params = sampling_params(sampling)
        cdef shared_ptr[CppSampler] c_sibling
        if sibling is not None:
            c_sibling = sibling.c_obj
        with nogil:
            self.c_obj = make_sampler(model.c_obj, params, c_sibling)

    def accept_prompt(self, tokens):
        cdef vector[llama_token] c_tokens = tokens
        with nogil:
            self.c_obj.get().accept_prompt(c_tokens)

    def restrict(self, *masks):
        cdef deque[vector[uint32_t]] c_masks
        cdef vector[uint32_t] words
        cdef const uint32_t[::1] view
        for mask in masks:
            words.clear()
            if mask is not None:
                view = mask
                words.assign(&view[0], &view[0] + view.shape[0])
            c_masks.push_back(words)
        self.c_obj.get().restrict_to(move(c_masks))
