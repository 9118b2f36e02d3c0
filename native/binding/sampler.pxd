from libc.stdint cimport int32_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.deque cimport deque
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from llama cimport llama_logit_bias, llama_token
from translate cimport translate_exception


cdef extern from "sampling/sampler_chain.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppSamplingParams "pyllmcancel::SamplingParams":
        CppSamplingParams()
        float temperature
        int32_t top_k
        float top_p
        float min_p
        float typical_p
        float top_n_sigma
        float dynatemp_range
        float dynatemp_exponent
        float xtc_probability
        float xtc_threshold
        int32_t min_keep
        int32_t mirostat
        float mirostat_tau
        float mirostat_eta
        float dry_multiplier
        float dry_base
        int32_t dry_allowed_length
        int32_t dry_penalty_last_n
        vector[string] dry_sequence_breakers
        vector[string] samplers
        float repeat_penalty
        float frequency_penalty
        float presence_penalty
        int32_t penalty_last_n
        uint32_t seed
        cbool ignore_eos
        vector[llama_logit_bias] logit_bias
        string grammar
        string grammar_prefix
        vector[pair[string, string]] grammar_triggers
        string thinking_start
        vector[string] thinking_ends
        int32_t n_logprobs
        cbool logprobs_after_sampling


cdef extern from "sampling/logits.hpp" namespace "pyllmcancel" nogil:
    cdef enum class CppLogitFault "pyllmcancel::LogitFault"(int32_t):
        none
        not_finite
        all_equal
        grammar
        too_complex
        no_memory

    cdef struct TokenLogprob:
        llama_token token
        float logprob


cdef extern from "sampling/sampler.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass Sampled:
        llama_token token
        CppLogitFault fault
        float logprob
        vector[TokenLogprob] top

    cdef cppclass CppSampler "pyllmcancel::Sampler":
        void accept_prompt(const vector[llama_token] & tokens) except +translate_exception
        cbool reports_logprobs()
        void restrict_to(deque[vector[uint32_t]] masks)
