from libc.stdint cimport int32_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from adapters cimport AdapterScales
from cancel_flag cimport CppCancelFlag
from llama cimport llama_token
from model cimport MemoryKind
from step cimport CommonParams, StepCost, StepItem, StepOutcome
from translate cimport translate_exception


cdef extern from "step/embedder.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass EmbedderParams(CommonParams):
        int32_t pooling

    cdef cppclass CppEmbedRow "pyllmcancel::EmbedRow":
        int32_t seq
        int32_t n_tokens
        cbool faulty
        vector[float] embedding

    cdef cppclass CppEmbedResult "pyllmcancel::EmbedResult"(StepOutcome):
        vector[CppEmbedRow] rows

    cdef cppclass CppEmbedder "pyllmcancel::Embedder":
        void open(
            int32_t seq, vector[llama_token] tokens, shared_ptr[CppCancelFlag] flag, AdapterScales adapters
        ) except +translate_exception
        void close(int32_t seq) except +translate_exception
        CppEmbedResult step(const vector[StepItem] & items, StepCost cost) except +translate_exception
        void rest() except +translate_exception
        void give_way(shared_ptr[const CppCancelFlag] flag) except +translate_exception
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
