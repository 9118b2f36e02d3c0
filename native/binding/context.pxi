from libc.stdint cimport INT32_MAX, int32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.utility cimport move
from libcpp.vector cimport vector

from context cimport ContextParams, CppContext, CppGraphCounts, CppStepResult, CppStepRow, OpenOptions, StepEnd
from factories cimport make_context
from llama cimport llama_token
from sampler cimport CppLogitFault
from step cimport StepCost, StepItem
from swapped_prefix cimport CppSwappedPrefix

from pyllmcancel.step import MOST_EXTRA_OUTPUTS as _MOST_EXTRA_OUTPUTS
from pyllmcancel.step import GraphCounts, LogitFault, SampledToken, StepResult, StepRow

cdef dict FAULTS = {
    <int> CppLogitFault.none: LogitFault.NONE,
    <int> CppLogitFault.not_finite: LogitFault.NOT_FINITE,
    <int> CppLogitFault.all_equal: LogitFault.ALL_EQUAL,
    <int> CppLogitFault.grammar: LogitFault.GRAMMAR,
    <int> CppLogitFault.too_complex: LogitFault.TOO_COMPLEX,
    <int> CppLogitFault.no_memory: LogitFault.NO_MEMORY,
}


cdef tuple described(CppStepRow & row):
    cdef size_t i
    tokens = []
    for i in range(row.described.size()):
        tokens.append((row.described[i].token, row.described[i].logprob, top_logprobs(row.described[i])))
    return tuple(tokens)


cdef object sampled_token(Sampled & sampled, cbool logprobs_wanted):
    if not logprobs_wanted:
        return SampledToken(sampled.token)
    return SampledToken(sampled.token, sampled.logprob, top_logprobs(sampled))


cdef object step_row(CppStepRow & row, cbool logprobs_wanted):
    cdef size_t i
    sampled = []
    for i in range(row.sampled.size()):
        sampled.append(sampled_token(row.sampled[i], logprobs_wanted))
    return StepRow(row.seq, row.n_tokens, tuple(sampled), FAULTS[<int> row.fault],
                   described(row) if logprobs_wanted else ())


cdef vector[StepEnd] step_ends(object ends) except *:
    cdef vector[StepEnd] c_ends
    cdef StepEnd c_end
    for n_wanted, stop_tokens in ends:
        c_end.n_wanted = n_wanted
        c_end.stop_tokens = stop_tokens
        c_ends.push_back(c_end)
    return c_ends


cdef class _Logits(_Array):
    cdef Context context  # owns llama.cpp's logits buffer


cdef class Context:
    """A llama.cpp context: its cells, its sequences, and the one function that computes.

    Obey these rules: one thread at a time (a second one gets ContextBusy while a step runs); `open` an idle seq_id,
    `step` it, `close` it; arrays from `logits` show the last step only, and the next one overwrites them. While a step
    is ahead, `collect` it: all calls but `forbid_ahead`, `allow_ahead` and those for constants get ContextBusy.
    """

    cdef unique_ptr[CppContext] c_obj
    cdef readonly Model model
    cdef readonly int32_t n_ctx, n_cells, n_seq_max, n_batch
    cdef readonly cbool kv_unified, can_swap, can_copy, can_draft, is_offloaded
    cdef readonly str memory_kind
    cdef set logprob_seqs  # sequences whose sampler computes logprobs

    def __cinit__(self, Model model not None, *, n_ctx, n_seq_max, n_batch, n_threads,
                  n_threads_batch=None, cbool adapt_threads=False, cbool kv_unified=True,
                  cbool kv_offload=True, cbool op_offload=True,
                  int flash_attention=-1, int type_k=1, int type_v=1, int checkpoint_interval=64, int n_checkpoints=4,
                  checkpoint_bytes=1 << 30, int n_states=0, cbool heads=False,
                  cut_seconds=None, cbool abortable=True,
                  cbool trust_any_memory=False):
        cdef ContextParams params
        set_common(params, n_ctx, n_seq_max, n_batch, n_threads, n_threads_batch, adapt_threads,
                   kv_offload, op_offload, flash_attention, type_k, type_v, cut_seconds, abortable)
        params.kv_unified = kv_unified
        params.n_extra_outputs = _MOST_EXTRA_OUTPUTS
        params.checkpoint_interval = checkpoint_interval
        params.n_checkpoints = n_checkpoints
        params.checkpoint_bytes = checkpoint_bytes
        params.n_states = n_states
        params.heads = heads
        params.trust_any_memory = trust_any_memory
        self.model = model
        self.logprob_seqs = set()
        with nogil:
            self.c_obj = make_context(model.c_obj, params)
        self.n_ctx = self.c_obj.get().n_ctx()
        self.n_cells = self.c_obj.get().n_cells()
        self.n_seq_max = self.c_obj.get().n_seq_max()
        self.n_batch = self.c_obj.get().n_batch()
        self.kv_unified = self.c_obj.get().kv_unified()
        self.can_swap = self.c_obj.get().can_swap()
        self.can_copy = self.c_obj.get().can_copy()
        self.can_draft = self.c_obj.get().can_draft()
        self.is_offloaded = self.c_obj.get().is_offloaded()
        self.memory_kind = MEMORY_KINDS[<int> self.c_obj.get().memory_kind()]

    def __dealloc__(self):
        # Joins the compute threads: never while holding the GIL.
        with nogil:
            self.c_obj.reset()

    cdef CppContext * at_rest(self) except NULL:
        """Raise ContextBusy for readers of values that a step ahead writes."""
        self.c_obj.get().check_at_rest()
        return self.c_obj.get()

    @property
    def n_threads(self):
        return self.c_obj.get().n_threads()

    @property
    def n_cells_used(self):
        return self.at_rest().n_cells_used()

    @property
    def checkpoint_bytes(self):
        return self.at_rest().checkpoint_bytes()

    def graph_counts(self):
        cdef CppGraphCounts counts = self.at_rest().graph_counts()
        return GraphCounts(counts.splits, counts.copies, counts.reused)

    def open(self, int32_t seq, tokens, Sampler sampler not None, CancelFlag flag not None, *,
             int32_t n_held=0, int32_t n_reusable=INT32_MAX, int32_t n_described=0, adapters=(),
             int32_t adapted_from=0, media=()):
        cdef vector[llama_token] c_tokens = tokens
        cdef OpenOptions options
        options.n_held = n_held
        options.n_reusable = n_reusable
        options.n_described = n_described
        options.media = media_inputs(media)
        options.adapters = adapters
        options.adapted_from = adapted_from
        cdef int32_t n_kept
        with nogil:
            n_kept = self.c_obj.get().open(seq, move(c_tokens), sampler.c_obj, flag.c_obj, options)
        if n_described > 0 or sampler.c_obj.get().reports_logprobs():
            self.logprob_seqs.add(seq)
        return n_kept

    def close(self, int32_t seq, *, cbool keep):
        with nogil:
            self.c_obj.get().close(seq, keep)
        self.logprob_seqs.discard(seq)

    def drop_cells(self, int32_t seq):
        with nogil:
            self.c_obj.get().drop_cells(seq)

    def rest(self):
        with nogil:
            self.c_obj.get().rest()

    def take_turns(self, MediaEncoder encoder not None):
        self.c_obj.get().take_turns(encoder.c_obj.get().turns())

    def common_prefixes(self, tokens, *, int32_t most=INT32_MAX):
        cdef vector[llama_token] c_tokens = tokens
        cdef int32_t seq
        cdef CppContext * c_context = self.at_rest()
        return [c_context.common_prefix(seq, c_tokens, most) for seq in range(self.n_seq_max)]

    def share_prefix(self, int32_t source, int32_t target, int32_t n_tokens, *, size_t max_bytes):
        cdef cbool shared
        with nogil:
            shared = self.c_obj.get().share_prefix(source, target, n_tokens, max_bytes)
        return shared

    def common_with(self, prefixes, tokens):
        cdef vector[llama_token] c_tokens = tokens
        return [(<SwappedPrefix?> prefix).c_obj.get().common_prefix(c_tokens) for prefix in prefixes]

    def swap_bytes(self, int32_t seq):
        return self.at_rest().swap_bytes(seq)

    def copy_out(self, int32_t seq, *, size_t max_bytes):
        cdef shared_ptr[const CppSwappedPrefix] made
        with nogil:
            made = self.c_obj.get().copy_out(seq, max_bytes)
        return swapped_prefix(made) if made else None

    def swap_in(self, int32_t seq, SwappedPrefix prefix not None):
        cdef cbool swapped
        with nogil:
            swapped = self.c_obj.get().swap_in(seq, prefix.c_obj.get()[0])
        return swapped

    def step(self, items, *, double fixed_cost=0.0, double cost_per_token=1.0, ends=None):
        cdef vector[StepItem] c_items = step_items(items)
        cdef StepCost cost = step_cost(fixed_cost, cost_per_token)
        cdef vector[StepEnd] c_ends
        cdef CppStepResult result
        if ends is None:
            with nogil:
                result = self.c_obj.get().step(c_items, cost)
        else:
            c_ends = step_ends(ends)
            with nogil:
                result = self.c_obj.get().step_ahead(c_items, cost, move(c_ends))
        return self.step_result(result)

    def start_ahead(self):
        with nogil:
            self.c_obj.get().start_ahead()

    def collect(self, *, cbool goes_on):
        cdef CppStepResult result
        with nogil:
            result = self.c_obj.get().collect(goes_on)
        return self.step_result(result)

    cdef object step_result(self, CppStepResult & result):
        cdef size_t i
        rows = []
        for i in range(result.rows.size()):
            rows.append(step_row(result.rows[i], result.rows[i].seq in self.logprob_seqs))
        return StepResult(STATUSES[<int> result.status], rows, result.spared, result.polls, result.decode_us,
                          result.sample_us, result.n_threads, result.began_us, result.ahead)

    def forbid_ahead(self):
        self.c_obj.get().forbid_ahead()

    def allow_ahead(self):
        self.c_obj.get().allow_ahead()

    def give_way(self, CancelFlag flag not None):
        self.c_obj.get().give_way(<shared_ptr[const CppCancelFlag]> flag.c_obj)

    def raise_at(self, int poll, CancelFlag flag not None, *, int n_later=0):
        self.c_obj.get().raise_at(poll, flag.c_obj, n_later)

    def first_state(self, int32_t seq):
        return self.at_rest().first_state(seq)

    def follow(self, int32_t seq, Context model not None, int32_t of, *, int32_t first, int32_t n_tokens):
        with nogil:
            self.c_obj.get().follow(seq, model.c_obj.get()[0], of, first, n_tokens)

    def n_committed(self, int32_t seq):
        return self.at_rest().n_committed(seq)

    def n_cells_of(self, seqs):
        return self.at_rest().n_cells_of(seqs)

    def tokens(self, int32_t seq):
        return self.at_rest().tokens(seq)

    def logits(self, int32_t seq):
        cdef const float * data = self.at_rest().logits(seq)
        if data == NULL:
            return None
        cdef _Logits row = _Logits()
        row.context = self
        return row.show(data, "f", sizeof(float), self.model.n_vocab)
