# The common parts of Context and Embedder: their construction, and their steps.

from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from step cimport CommonParams, CppStepStatus, StepCost, StepItem, c_worth_aborting

from pyllmcancel import errors
from pyllmcancel.step import StepStatus

cdef object MAX_INT = 2**31 - 1

cdef dict STATUSES = {
    <int> CppStepStatus.ok: StepStatus.OK,
    <int> CppStepStatus.aborted: StepStatus.ABORTED,
    <int> CppStepStatus.no_room: StepStatus.NO_ROOM,
    <int> CppStepStatus.invalid: StepStatus.INVALID,
    <int> CppStepStatus.failed_alloc: StepStatus.FAILED_ALLOC,
    <int> CppStepStatus.failed_compute: StepStatus.FAILED_COMPUTE,
}


cdef int natural(str name, object number) except -1:
    if number < 1:
        raise errors.UsageError(f"{name} must be positive")
    if number > MAX_INT:
        raise errors.ContextError(f"{name} is {number}, and can be {MAX_INT} at most")
    return number


cdef void set_common(
    CommonParams & params, object n_ctx, object n_seq_max, object n_batch, object n_threads, object n_threads_batch,
    cbool adapt_threads, cbool kv_offload, cbool op_offload, int flash_attention, int type_k, int type_v,
    object cut_seconds, cbool abortable
) except *:
    params.n_ctx = natural("n_ctx", n_ctx)
    params.n_seq_max = natural("n_seq_max", n_seq_max)
    params.n_batch = natural("n_batch", n_batch)
    params.n_threads = natural("n_threads", n_threads)
    params.n_threads_batch = natural("n_threads_batch", n_threads if n_threads_batch is None else n_threads_batch)
    params.adapt_threads = adapt_threads
    params.kv_offload = kv_offload
    params.op_offload = op_offload
    params.flash_attention = flash_attention
    params.type_k = type_k
    params.type_v = type_v
    params.cut_seconds = -1.0 if cut_seconds is None else <double> cut_seconds
    params.abortable = abortable


cdef StepCost step_cost(double fixed, double per_token) noexcept:
    cdef StepCost cost
    cost.fixed = fixed
    cost.per_token = per_token
    return cost


cdef vector[StepItem] step_items(object items) except *:
    cdef vector[StepItem] c_items
    cdef StepItem c_item
    for item in items:
        c_item.seq = item[0]
        c_item.n_tokens = item[1]
        c_item.draft = item[2] if len(item) > 2 else ()
        c_items.push_back(c_item)
    return c_items


def worth_aborting(int n_tokens, int n_surviving_tokens, double done, *, double fixed_cost, double cost_per_token):
    return c_worth_aborting(step_cost(fixed_cost, cost_per_token), n_tokens, n_surviving_tokens, done)
