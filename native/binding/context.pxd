from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from adapters cimport AdapterScales
from cancel_flag cimport CppCancelFlag
from llama cimport llama_token
from media cimport MediaInput, Turns
from model cimport MemoryKind
from sampler cimport CppLogitFault, CppSampler, Sampled
from step cimport CommonParams, StepCost, StepItem, StepOutcome
from swapped_prefix cimport CppSwappedPrefix
from translate cimport translate_exception


cdef extern from "step/context.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass ContextParams(CommonParams):
        cbool kv_unified
        uint32_t n_extra_outputs
        int32_t checkpoint_interval
        uint32_t n_checkpoints
        uint64_t checkpoint_bytes
        uint32_t n_states
        cbool heads
        cbool trust_any_memory

    cdef cppclass OpenOptions:
        int32_t n_held
        int32_t n_reusable
        int32_t n_described
        AdapterScales adapters
        int32_t adapted_from
        vector[MediaInput] media

    cdef cppclass CppStepRow "pyllmcancel::StepRow":
        int32_t seq
        int32_t n_tokens
        CppLogitFault fault
        vector[Sampled] sampled
        vector[Sampled] described

    cdef cppclass CppStepResult "pyllmcancel::StepResult"(StepOutcome):
        int64_t sample_us
        vector[CppStepRow] rows
        cbool ahead

    cdef cppclass CppGraphCounts "pyllmcancel::GraphCounts":
        int32_t splits
        int32_t copies
        int32_t reused

    cdef cppclass StepEnd:
        int32_t n_wanted
        vector[llama_token] stop_tokens

    cdef cppclass CppContext "pyllmcancel::Context":
        int32_t open(
            int32_t seq, vector[llama_token] tokens, shared_ptr[CppSampler] sampler, shared_ptr[CppCancelFlag] flag,
            OpenOptions options
        ) except +translate_exception
        void close(int32_t seq, cbool keep) except +translate_exception
        void drop_cells(int32_t seq) except +translate_exception
        int32_t common_prefix(
            int32_t seq, const vector[llama_token] & tokens, int32_t most
        ) except +translate_exception
        cbool share_prefix(
            int32_t source, int32_t target, int32_t n_tokens, size_t max_bytes
        ) except +translate_exception
        cbool can_swap()
        cbool can_copy()
        cbool can_draft()
        cbool is_offloaded() except +translate_exception
        size_t swap_bytes(int32_t seq) except +translate_exception
        shared_ptr[const CppSwappedPrefix] copy_out(int32_t seq, size_t max_bytes) except +translate_exception
        cbool swap_in(int32_t seq, const CppSwappedPrefix & prefix) except +translate_exception
        void rest() except +translate_exception
        void take_turns(shared_ptr[Turns] turns) except +translate_exception
        void give_way(shared_ptr[const CppCancelFlag] flag) except +translate_exception
        void raise_at(uint32_t poll, shared_ptr[CppCancelFlag] flag, uint32_t n_later)
        CppStepResult step(const vector[StepItem] & items, StepCost cost) except +translate_exception
        void start_ahead() except +translate_exception
        CppStepResult step_ahead(
            const vector[StepItem] & items, StepCost cost, vector[StepEnd] ends
        ) except +translate_exception
        CppStepResult collect(cbool goes_on) except +translate_exception
        void forbid_ahead()
        void allow_ahead()
        void check_at_rest() except +translate_exception
        int32_t first_state(int32_t seq) except +translate_exception
        void follow(
            int32_t seq, const CppContext & model, int32_t of, int32_t first, int32_t n_tokens
        ) except +translate_exception
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
        CppGraphCounts graph_counts()
        MemoryKind memory_kind()
