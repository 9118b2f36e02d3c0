from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.utility cimport move
from libcpp.vector cimport vector

from adapters cimport AdapterScales
from embedder cimport CppEmbedder, CppEmbedResult, EmbedderParams
from factories cimport make_embedder
from llama cimport llama_token
from step cimport StepCost, StepItem

from pyllmcancel.pooling import EmbedResult, EmbedRow, Pooling


cdef class Embedder:
    """A llama.cpp context for texts: each has one normalised vector, or one of each token, or its scores.

    The rules are Context's: one thread at a time, and `open`, `step`, `close`. The reader may keep the arrays.
    """

    cdef unique_ptr[CppEmbedder] c_obj
    cdef readonly Model model
    cdef readonly int32_t n_ctx, n_seq_max, n_batch, n_text_max, n_embd
    cdef readonly object pooling
    cdef readonly cbool splits
    cdef readonly str memory_kind

    def __cinit__(self, Model model not None, *, n_ctx, n_seq_max, n_batch, n_threads,
                  n_threads_batch=None, cbool adapt_threads=False, cbool kv_offload=True, cbool op_offload=True,
                  pooling=None,
                  int flash_attention=-1, int type_k=1, int type_v=1, cut_seconds=None, cbool abortable=True):
        cdef EmbedderParams params
        set_common(params, n_ctx, n_seq_max, n_batch, n_threads, n_threads_batch, adapt_threads,
                   kv_offload, op_offload, flash_attention, type_k, type_v, cut_seconds, abortable)
        params.pooling = -1 if pooling is None else pooling
        self.model = model
        with nogil:
            self.c_obj = make_embedder(model.c_obj, params)
        self.n_ctx = self.c_obj.get().n_ctx()
        self.n_seq_max = self.c_obj.get().n_seq_max()
        self.n_batch = self.c_obj.get().n_batch()
        self.n_text_max = self.c_obj.get().n_text_max()
        self.n_embd = self.c_obj.get().n_embd()
        self.pooling = Pooling(self.c_obj.get().pooling())
        self.splits = self.c_obj.get().splits()
        self.memory_kind = MEMORY_KINDS[<int> self.c_obj.get().memory_kind()]

    def __dealloc__(self):
        # Joins the compute threads: never while holding the GIL.
        with nogil:
            self.c_obj.reset()

    @property
    def n_threads(self):
        return self.c_obj.get().n_threads()

    @property
    def n_cells_used(self):
        return self.c_obj.get().n_cells_used()

    def open(self, int32_t seq, tokens, CancelFlag flag not None, *, adapters=()):
        cdef vector[llama_token] c_tokens = tokens
        cdef AdapterScales c_adapters = adapters
        with nogil:
            self.c_obj.get().open(seq, move(c_tokens), flag.c_obj, move(c_adapters))

    def close(self, int32_t seq):
        with nogil:
            self.c_obj.get().close(seq)

    def rest(self):
        with nogil:
            self.c_obj.get().rest()

    def step(self, items, *, double fixed_cost=0.0, double cost_per_token=1.0):
        cdef vector[StepItem] c_items = step_items(items)
        cdef StepCost cost = step_cost(fixed_cost, cost_per_token)
        cdef CppEmbedResult result
        with nogil:
            result = self.c_obj.get().step(c_items, cost)
        cdef size_t i
        rows = []
        for i in range(result.rows.size()):
            array = None
            if not result.rows[i].embedding.empty():
                array = embedding_array(result.rows[i].embedding)
                if self.pooling is Pooling.NONE:
                    array = array.reshape(-1, self.n_embd)
            rows.append(EmbedRow(result.rows[i].seq, result.rows[i].n_tokens, array, result.rows[i].faulty))
        return EmbedResult(STATUSES[<int> result.status], rows, result.spared, result.polls, result.decode_us,
                           result.n_threads)

    def give_way(self, CancelFlag flag not None):
        self.c_obj.get().give_way(<shared_ptr[const CppCancelFlag]> flag.c_obj)

    def raise_at(self, int poll, CancelFlag flag not None):
        self.c_obj.get().raise_at(poll, flag.c_obj)

    def n_committed(self, int32_t seq):
        return self.c_obj.get().n_committed(seq)
