from libc.stdint cimport int32_t, uint64_t
from libcpp cimport bool as cbool


cdef extern from "llama.h" nogil:
    ctypedef int32_t llama_token

    cdef struct llama_model:
        pass

    cdef struct llama_vocab:
        pass

    cdef cppclass llama_context_params:
        pass

    cdef struct llama_logit_bias:
        llama_token token
        float bias

    const char * llama_print_system_info()
    int32_t llama_model_n_ctx_train(const llama_model * model)
    int32_t llama_model_n_embd(const llama_model * model)
    int32_t llama_model_n_layer(const llama_model * model)
    int32_t llama_model_n_swa(const llama_model * model)
    uint64_t llama_model_n_params(const llama_model * model)
    uint64_t llama_model_size(const llama_model * model)
    int32_t llama_vocab_n_tokens(const llama_vocab * vocab)
    cbool llama_vocab_is_eog(const llama_vocab * vocab, llama_token token)
    cbool llama_vocab_get_add_bos(const llama_vocab * vocab)
    cbool llama_vocab_get_add_eos(const llama_vocab * vocab)
    cbool llama_vocab_get_add_sep(const llama_vocab * vocab)
    llama_token llama_vocab_bos(const llama_vocab * vocab)
    llama_token llama_vocab_eos(const llama_vocab * vocab)
    llama_token llama_vocab_eot(const llama_vocab * vocab)
    llama_token llama_vocab_sep(const llama_vocab * vocab)
    llama_token llama_vocab_fim_pre(const llama_vocab * vocab)
    llama_token llama_vocab_fim_suf(const llama_vocab * vocab)
    llama_token llama_vocab_fim_mid(const llama_vocab * vocab)
    llama_token llama_vocab_fim_pad(const llama_vocab * vocab)
    llama_token llama_vocab_fim_rep(const llama_vocab * vocab)
    llama_token llama_vocab_fim_sep(const llama_vocab * vocab)
