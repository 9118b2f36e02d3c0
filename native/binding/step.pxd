from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from llama cimport llama_token


cdef extern from "step/abort_gate.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass StepCost:
        double fixed
        double per_token

    cbool c_worth_aborting "pyllmcancel::worth_aborting"(
        const StepCost & cost, int32_t n_tokens, int32_t n_surviving_tokens, double done
    )


cdef extern from "step/step_status.hpp" namespace "pyllmcancel" nogil:
    cdef enum class CppStepStatus "pyllmcancel::StepStatus"(int32_t):
        ok
        aborted
        no_room
        invalid
        failed_alloc
        failed_compute


cdef extern from "step/step_items.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass StepItem:
        int32_t seq
        int32_t n_tokens
        vector[llama_token] draft


cdef extern from "step/common_params.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CommonParams:
        uint32_t n_ctx
        uint32_t n_seq_max
        uint32_t n_batch
        int32_t n_threads
        int32_t n_threads_batch
        cbool adapt_threads
        cbool kv_offload
        cbool op_offload
        int32_t flash_attention
        int32_t type_k
        int32_t type_v
        double cut_seconds
        cbool abortable


cdef extern from "step/step_runner.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass StepOutcome:
        CppStepStatus status
        cbool spared
        uint32_t polls
        int64_t began_us
        int64_t decode_us
        int32_t n_threads
