# Mirrors the C++ headers of this folder, and nothing else.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "translate.hpp" namespace "pyllmcancel" nogil:
    void translate_exception()

    cdef cppclass PythonErrors:
        PyObject * model_load
        PyObject * load_cancelled
        PyObject * context
        PyObject * busy
        PyObject * usage

    PythonErrors & python_errors()


cdef extern from "llama.h" nogil:
    ctypedef int32_t llama_token

    cdef struct llama_model:
        pass

    cdef struct llama_vocab:
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
    cbool llama_vocab_is_control(const llama_vocab * vocab, llama_token token)
    cbool llama_vocab_get_add_bos(const llama_vocab * vocab)
    llama_token llama_vocab_bos(const llama_vocab * vocab)
    llama_token llama_vocab_eos(const llama_vocab * vocab)
    llama_token llama_vocab_eot(const llama_vocab * vocab)
    llama_token llama_vocab_fim_pre(const llama_vocab * vocab)
    llama_token llama_vocab_fim_suf(const llama_vocab * vocab)
    llama_token llama_vocab_fim_mid(const llama_vocab * vocab)
    llama_token llama_vocab_fim_pad(const llama_vocab * vocab)
    llama_token llama_vocab_fim_rep(const llama_vocab * vocab)
    llama_token llama_vocab_fim_sep(const llama_vocab * vocab)


cdef extern from "cancel_flag.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppCancelFlag "pyllmcancel::CancelFlag":
        CppCancelFlag()
        void raise_flag "raise"()
        cbool raised()


cdef extern from "hang_up.hpp" namespace "pyllmcancel" nogil:
    cbool has_hung_up(int socket)


cdef extern from "<string_view>" namespace "std" nogil:
    cdef cppclass string_view:
        string_view()
        string_view(const char * text, size_t length)
        const char * data()
        size_t size()


cdef extern from "json_size.hpp" namespace "pyllmcancel" nogil:
    cdef enum class JsonExcess(int32_t):
        none
        values
        depth
        fields

    cdef cppclass JsonLimits:
        size_t values
        size_t depth
        size_t fields

    cdef cppclass CppJsonSize "pyllmcancel::JsonSize":
        JsonExcess excess
        string_view key

    CppJsonSize json_size(string_view text, const JsonLimits & limits)


cdef extern from "model.hpp" namespace "pyllmcancel" nogil:
    cdef enum class MemoryKind(int32_t):
        attention
        recurrent
        hybrid
        none

    cdef cppclass ModelParams:
        int32_t n_gpu_layers
        cbool use_mmap
        cbool use_mlock
        cbool check_tensors
        vector[pair[string, float]] lora
        int64_t progress_interval_us
        cbool require_vocabulary

    cdef cppclass Progress:
        pass

    cdef cppclass CppModel "pyllmcancel::Model":
        @staticmethod
        shared_ptr[CppModel] load(
            string path, const ModelParams & params, const Progress & progress
        ) except +translate_exception
        llama_model * handle()
        const llama_vocab * vocab()
        MemoryKind memory_kind()
        cbool can_divide_cells()
        string description() except +translate_exception
        vector[pair[string, string]] metadata() except +translate_exception
        string chat_template() except +translate_exception
        vector[llama_token] tokenize(
            const string & text, cbool add_special, cbool parse_special
        ) except +translate_exception
        size_t longest_piece() except +translate_exception
        string piece(llama_token token, cbool special) except +translate_exception


cdef extern from "sampler_chain.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass SamplingParams:
        SamplingParams()
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
        int32_t n_logprobs
        cbool logprobs_after_sampling


cdef extern from "logits.hpp" namespace "pyllmcancel" nogil:
    cdef enum class LogitFault(int32_t):
        pass

    cdef struct TokenLogprob:
        llama_token token
        float logprob


cdef extern from "sampler.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass Sampled:
        llama_token token
        LogitFault fault
        float logprob
        vector[TokenLogprob] top

    cdef cppclass CppSampler "pyllmcancel::Sampler":
        void accept_prompt(const vector[llama_token] & tokens) except +translate_exception
        cbool reports_logprobs()
        void restrict_to(vector[uint32_t] mask)


cdef extern from "abort_gate.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass StepCost:
        double fixed
        double per_token

    cbool c_worth_aborting "pyllmcancel::worth_aborting"(
        const StepCost & cost, int32_t n_tokens, int32_t n_surviving_tokens, double done
    )


cdef extern from "core_times.hpp" namespace "pyllmcancel" nogil:
    cdef struct CoreTimes:
        int64_t at
        int64_t idle
        int64_t own

    optional[int64_t] c_idle_ticks "pyllmcancel::idle_ticks"(string text, const vector[int] & cpus)
    int32_t c_n_runnable "pyllmcancel::n_runnable"(string text)


cdef extern from "thread_policy.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppThreadPolicy "pyllmcancel::ThreadPolicy":
        CppThreadPolicy(int32_t most)
        int32_t n_threads()
        void rest()
        void take(const CoreTimes & now, int32_t n_crowded_out)


cdef extern from "context.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass ContextParams:
        uint32_t n_ctx
        cbool kv_unified
        uint32_t n_seq_max
        uint32_t n_batch
        int32_t n_threads
        int32_t n_threads_batch
        cbool adapt_threads
        cbool offload_kqv
        int32_t flash_attention
        int32_t type_k
        int32_t type_v
        int32_t checkpoint_interval
        uint32_t n_checkpoints
        uint64_t checkpoint_bytes
        int32_t row_padding
        double cut_seconds
        cbool abortable
        cbool trust_any_memory

    cdef enum class StepStatus(int32_t):
        pass

    cdef struct StepItem:
        int32_t seq
        int32_t n_tokens

    cdef struct OpenOptions:
        cbool reuse
        int32_t n_described

    cdef cppclass StepRow:
        int32_t seq
        int32_t n_tokens
        cbool sampled
        Sampled next
        vector[Sampled] described

    cdef cppclass CppStepResult "pyllmcancel::StepResult":
        StepStatus status
        cbool spared
        uint32_t polls
        int64_t decode_us
        int32_t n_threads
        int64_t sample_us
        vector[StepRow] rows

    cdef cppclass CppSwappedPrefix "pyllmcancel::SwappedPrefix":
        int32_t common_prefix(const vector[llama_token] & tokens)
        const vector[llama_token] & tokens()
        int32_t n_tokens()
        size_t n_bytes()
        double seconds()

    cdef cppclass CppContext "pyllmcancel::Context":
        int32_t open(
            int32_t seq, vector[llama_token] tokens, shared_ptr[CppSampler] sampler, shared_ptr[CppCancelFlag] flag,
            OpenOptions options
        ) except +translate_exception
        void close(int32_t seq, cbool keep) except +translate_exception
        void drop_cells(int32_t seq) except +translate_exception
        int32_t common_prefix(int32_t seq, const vector[llama_token] & tokens) except +translate_exception
        cbool share_prefix(
            int32_t source, int32_t target, int32_t n_tokens, size_t max_bytes
        ) except +translate_exception
        cbool can_swap()
        cbool can_offload()
        size_t swap_bytes(int32_t seq) except +translate_exception
        shared_ptr[const CppSwappedPrefix] copy_out(int32_t seq, size_t max_bytes) except +translate_exception
        shared_ptr[const CppSwappedPrefix] ghost(int32_t seq) except +translate_exception
        cbool swap_in(int32_t seq, const CppSwappedPrefix & prefix) except +translate_exception
        void rest() except +translate_exception
        void raise_at(uint32_t poll, shared_ptr[CppCancelFlag] flag)
        CppStepResult step(const vector[StepItem] & items, StepCost cost) except +translate_exception
        int32_t n_committed(int32_t seq) except +translate_exception
        const vector[llama_token] & tokens(int32_t seq) except +translate_exception
        const float * logits(int32_t seq) except +translate_exception
        int32_t n_threads()
        int32_t n_ctx()
        int32_t n_cells()
        cbool kv_unified()
        int32_t n_seq_max()
        int32_t n_batch()
        int32_t n_cells_of(const vector[int32_t] & seqs) except +translate_exception
        int32_t n_cells_used()
        uint64_t checkpoint_bytes()
        int64_t checkpoint_us()
        int64_t n_padding()
        MemoryKind memory_kind()


cdef extern from "factories.hpp" namespace "pyllmcancel" nogil:
    Progress make_progress(cbool (*call)(float, void *) noexcept nogil, void * user_data)
    unique_ptr[CppContext] make_context(
        shared_ptr[CppModel] model, const ContextParams & params
    ) except +translate_exception
    shared_ptr[CppSampler] make_sampler(
        shared_ptr[CppModel] model, const SamplingParams & params, const shared_ptr[CppSampler] & sibling
    ) except +translate_exception


cdef extern from "embedder.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass EmbedderParams:
        uint32_t n_ctx
        uint32_t n_seq_max
        uint32_t n_batch
        int32_t n_threads
        int32_t n_threads_batch
        cbool adapt_threads
        int32_t pooling
        cbool offload_kqv
        int32_t flash_attention
        int32_t type_k
        int32_t type_v
        double cut_seconds
        cbool abortable

    cdef cppclass CppEmbedRow "pyllmcancel::EmbedRow":
        int32_t seq
        int32_t n_tokens
        cbool faulty
        vector[float] embedding

    cdef cppclass CppEmbedResult "pyllmcancel::EmbedResult":
        StepStatus status
        cbool spared
        uint32_t polls
        int64_t decode_us
        int32_t n_threads
        vector[CppEmbedRow] rows

    cdef cppclass CppEmbedder "pyllmcancel::Embedder":
        void open(
            int32_t seq, vector[llama_token] tokens, shared_ptr[CppCancelFlag] flag
        ) except +translate_exception
        void close(int32_t seq) except +translate_exception
        CppEmbedResult step(const vector[StepItem] & items, StepCost cost) except +translate_exception
        void rest() except +translate_exception
        void raise_at(uint32_t poll, shared_ptr[CppCancelFlag] flag)
        int32_t n_committed(int32_t seq) except +translate_exception
        int32_t n_seq_max()
        int32_t n_batch()
        int32_t n_embd()
        int32_t n_threads()
        int32_t n_ctx()
        int32_t n_cells_used()
        int32_t n_text_max()
        int32_t pooling()
        cbool splits()
        MemoryKind memory_kind()


cdef extern from "factories.hpp" namespace "pyllmcancel" nogil:
    unique_ptr[CppEmbedder] make_embedder(
        shared_ptr[CppModel] model, const EmbedderParams & params
    ) except +translate_exception


cdef extern from "factories.hpp" namespace "pyllmcancel":
    int add_test_functions(object module) except -1
