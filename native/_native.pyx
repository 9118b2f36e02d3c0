# cython: freethreading_compatible = False
"""llama.cpp as pyllmcancel sees it. Marshalling only: concurrency lives in C++, policy in Python.

The typed contract is ``pyllmcancel/_native.pyi``. Every call that may take more than microseconds releases the GIL.
"""

from cpython.buffer cimport PyBUF_WRITABLE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.utility cimport move
from libcpp.vector cimport vector

cimport core

import os
import re
import sys

import numpy as np

from pyllmcancel import errors
from pyllmcancel.embeddings.pooling import EmbedResult, EmbedRow, Pooling
from pyllmcancel.step import LogitFault, StepResult, StepRow, StepStatus


cdef void hand_over(object error_class, PyObject ** place):
    # Kept for the life of the process: C++ holds the bare pointer.
    Py_INCREF(error_class)
    place[0] = <PyObject *> error_class


hand_over(errors.ModelLoadError, &core.python_errors().model_load)
hand_over(errors.LoadCancelled, &core.python_errors().load_cancelled)
hand_over(errors.ContextError, &core.python_errors().context)
hand_over(errors.ContextBusy, &core.python_errors().busy)
hand_over(errors.UsageError, &core.python_errors().usage)

core.add_test_functions(sys.modules[__name__])

cdef object MOST_INT = 2**31 - 1
cdef tuple STATUSES = tuple(StepStatus)
cdef tuple FAULTS = tuple(LogitFault)
cdef tuple EXCESSES = (None, "values", "depth", "fields")
cdef tuple MEMORY_KINDS = ("attention", "recurrent", "hybrid", "none")


cdef class CancelFlag:
    """The sticky flag of one request, read by ggml between graph nodes."""

    cdef shared_ptr[core.CppCancelFlag] c_obj

    def __cinit__(self):
        self.c_obj = make_shared[core.CppCancelFlag]()

    def set(self):
        self.c_obj.get().raise_flag()

    def is_set(self):
        return self.c_obj.get().raised()


def has_hung_up(int socket):
    """Whether the other end of `socket`, a file descriptor, has closed the connection, or it broke. Never waits."""
    # With the GIL held: the engine's thread asks between two steps, and would wait for whoever took it meanwhile.
    return core.has_hung_up(socket)


def kernel_features():
    """What of a processor the kernels were compiled for, in llama.cpp's words: AVX2, AVX512_VNNI, REPACK …"""
    return frozenset(re.findall(r"(\w+) = 1\b", core.llama_print_system_info().decode()))


def json_excess(const unsigned char[::1] text not None, *, size_t values, size_t depth, size_t fields):
    cdef core.JsonLimits limits
    cdef core.CppJsonSize size
    limits.values, limits.depth, limits.fields = values, depth, fields
    if text.shape[0] == 0:
        return None
    with nogil:
        size = core.json_size(core.string_view(<const char *> &text[0], text.shape[0]), limits)
    if size.excess == core.JsonExcess.none:
        return None
    return EXCESSES[<int> size.excess], size.key.data()[:size.key.size()]


cdef class _Loading:
    cdef object progress
    cdef object error


cdef cbool on_progress(float fraction, void * user_data) noexcept with gil:
    cdef _Loading loading = <_Loading> user_data
    try:
        return loading.progress(fraction) is not False
    except BaseException as error:  # Re-raised by Model.load; a C++ frame lies between.
        loading.error = error
        return False


cdef class Model:
    """A loaded GGUF model and its vocabulary; immutable, shared by any number of contexts and threads."""

    cdef shared_ptr[core.CppModel] c_obj
    cdef int64_t longest  # bytes of the longest piece, once it was asked for

    def __init__(self, *_arguments, **_options):
        raise TypeError("a Model is made by Model.load")

    @staticmethod
    def load(path, *, int n_gpu_layers=0, cbool mmap=True, cbool mlock=False, cbool check_tensors=False,
             cbool require_vocabulary=True, lora=(), progress=None, double progress_interval=0.1):
        cdef string c_path = os.fsencode(path)
        cdef core.ModelParams params
        params.n_gpu_layers = n_gpu_layers
        params.use_mmap = mmap
        params.use_mlock = mlock
        params.check_tensors = check_tensors
        params.require_vocabulary = require_vocabulary
        params.progress_interval_us = <int64_t> (progress_interval * 1e6)
        cdef string c_adapter
        for adapter, scale in lora:
            c_adapter = os.fsencode(adapter)
            params.lora.push_back(pair[string, float](c_adapter, scale))
        cdef _Loading loading = _Loading()
        loading.progress = progress
        cdef core.Progress c_progress
        if progress is not None:
            c_progress = core.make_progress(<cbool (*)(float, void *) noexcept nogil> on_progress, <void *> loading)
        cdef Model model = Model.__new__(Model)
        model.longest = -1
        try:
            with nogil:
                model.c_obj = core.CppModel.load(c_path, params, c_progress)
        except errors.LoadCancelled:
            if loading.error is not None:
                raise loading.error
            raise
        return model

    def __dealloc__(self):
        # Unmapping gigabytes takes a while; nobody else need wait for it.
        with nogil:
            self.c_obj.reset()

    @property
    def n_ctx_train(self):
        return core.llama_model_n_ctx_train(self.c_obj.get().handle())

    @property
    def n_embd(self):
        return core.llama_model_n_embd(self.c_obj.get().handle())

    @property
    def n_layer(self):
        return core.llama_model_n_layer(self.c_obj.get().handle())

    @property
    def n_swa(self):
        return core.llama_model_n_swa(self.c_obj.get().handle())

    @property
    def n_params(self):
        return core.llama_model_n_params(self.c_obj.get().handle())

    @property
    def size(self):
        return core.llama_model_size(self.c_obj.get().handle())

    @property
    def n_vocab(self):
        return core.llama_vocab_n_tokens(self.c_obj.get().vocab())

    @property
    def memory_kind(self):
        return MEMORY_KINDS[<int> self.c_obj.get().memory_kind()]

    @property
    def can_divide_cells(self):
        return self.c_obj.get().can_divide_cells()

    @property
    def description(self):
        return self.c_obj.get().description().decode("utf-8", "replace")

    @property
    def metadata(self):
        return {
            entry.first.decode("utf-8", "replace"): entry.second.decode("utf-8", "replace")
            for entry in self.c_obj.get().metadata()
        }

    @property
    def chat_template(self):
        cdef string text = self.c_obj.get().chat_template()
        return text.decode("utf-8", "replace") if not text.empty() else None

    @property
    def special_tokens(self):
        cdef const core.llama_vocab * vocab = self.c_obj.get().vocab()
        named = {
            "bos": core.llama_vocab_bos(vocab),
            "eos": core.llama_vocab_eos(vocab),
            "eot": core.llama_vocab_eot(vocab),
            "fim_pre": core.llama_vocab_fim_pre(vocab),
            "fim_suf": core.llama_vocab_fim_suf(vocab),
            "fim_mid": core.llama_vocab_fim_mid(vocab),
            "fim_pad": core.llama_vocab_fim_pad(vocab),
            "fim_rep": core.llama_vocab_fim_rep(vocab),
            "fim_sep": core.llama_vocab_fim_sep(vocab),
        }
        return {name: token for name, token in named.items() if token >= 0}

    @property
    def adds_bos(self):
        return core.llama_vocab_get_add_bos(self.c_obj.get().vocab())

    def is_eog(self, int32_t token):
        return 0 <= token < self.n_vocab and core.llama_vocab_is_eog(self.c_obj.get().vocab(), token)

    def tokenize(self, text, *, cbool add_special=True, cbool parse_special=False):
        cdef string c_text = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        cdef vector[core.llama_token] tokens
        with nogil:
            tokens = self.c_obj.get().tokenize(c_text, add_special, parse_special)
        return tokens

    def longest_piece(self):
        if self.longest < 0:
            with nogil:
                self.longest = self.c_obj.get().longest_piece()
        return self.longest

    def piece(self, int32_t token, *, cbool special=False):
        return self.c_obj.get().piece(token, special)


cdef core.SamplingParams sampling_params(object sampling) except *:
    cdef core.SamplingParams params
    cdef core.llama_logit_bias bias
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

    cdef shared_ptr[core.CppSampler] c_obj

    def __cinit__(self, Model model not None, sampling, Sampler sibling=None):
        cdef core.SamplingParams params = sampling_params(sampling)
        cdef shared_ptr[core.CppSampler] c_sibling
        if sibling is not None:
            c_sibling = sibling.c_obj
        with nogil:
            self.c_obj = core.make_sampler(model.c_obj, params, c_sibling)

    def accept_prompt(self, tokens):
        cdef vector[core.llama_token] c_tokens = tokens
        with nogil:
            self.c_obj.get().accept_prompt(c_tokens)

    def restrict(self, mask):
        cdef vector[uint32_t] words
        cdef const uint32_t[::1] view
        if mask is not None:
            view = mask
            words.assign(&view[0], &view[0] + view.shape[0])
        self.c_obj.get().restrict_to(move(words))


def worth_aborting(int n_tokens, int n_surviving_tokens, double done, *, double fixed_cost, double cost_per_token):
    cdef core.StepCost cost
    cost.fixed = fixed_cost
    cost.per_token = cost_per_token
    return core.c_worth_aborting(cost, n_tokens, n_surviving_tokens, done)


def idle_ticks(text, cpus):
    cdef optional[int64_t] ticks = core.c_idle_ticks(<string> text, <vector[int]> cpus)
    return ticks.value() if ticks.has_value() else None


def n_runnable(text):
    return core.c_n_runnable(<string> text)


cdef class ThreadPolicy:
    """How many threads a step should have."""

    cdef unique_ptr[core.CppThreadPolicy] c_obj

    def __cinit__(self, int32_t most):
        self.c_obj.reset(new core.CppThreadPolicy(most))

    @property
    def n_threads(self):
        return self.c_obj.get().n_threads()

    def rest(self):
        self.c_obj.get().rest()

    def take(self, int64_t at, int64_t idle, int64_t own, int32_t n_crowded_out=0):
        cdef core.CoreTimes now
        now.at = at
        now.idle = idle
        now.own = own
        self.c_obj.get().take(now, n_crowded_out)
        return self.c_obj.get().n_threads()


cdef class _Array:
    # A one-dimensional, read-only, uncopied view of memory that a subclass keeps alive.
    cdef const void * data
    cdef const char * format
    cdef Py_ssize_t itemsize
    cdef Py_ssize_t length

    def __getbuffer__(self, Py_buffer * buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("this array is read-only")
        buffer.buf = <void *> self.data
        buffer.format = <char *> self.format
        buffer.itemsize = self.itemsize
        buffer.len = self.length * self.itemsize
        buffer.ndim = 1
        buffer.shape = &self.length
        buffer.strides = &self.itemsize
        buffer.suboffsets = NULL
        buffer.readonly = 1
        buffer.internal = NULL
        buffer.obj = self


cdef class _Logits(_Array):
    cdef Context context  # owns llama.cpp's logits buffer


cdef class _TopLogprobs(_Array):
    cdef vector[core.TokenLogprob] records


cdef object top_logprobs(core.Sampled & sampled):
    cdef _TopLogprobs top = _TopLogprobs()
    top.records = move(sampled.top)
    top.data = top.records.data()
    top.format = "T{i:token:f:logprob:}"
    top.itemsize = sizeof(core.TokenLogprob)
    top.length = <Py_ssize_t> top.records.size()
    return np.asarray(top)


cdef tuple described(core.StepRow & row):
    cdef size_t i
    tokens = []
    for i in range(row.described.size()):
        tokens.append((row.described[i].token, row.described[i].logprob, top_logprobs(row.described[i])))
    return tuple(tokens)


cdef object step_row(core.StepRow & row, cbool logprobs_wanted):
    fault = FAULTS[<int> row.next.fault]
    if not logprobs_wanted:
        return StepRow(row.seq, row.n_tokens, row.next.token, fault)
    if not row.sampled:
        return StepRow(row.seq, row.n_tokens, -1, fault, None, None, described(row))
    top = top_logprobs(row.next)
    return StepRow(row.seq, row.n_tokens, row.next.token, fault, row.next.logprob, top, described(row))


cdef const core.CppSwappedPrefix * as_made(SwappedPrefix prefix) except NULL:
    # __new__ gets past __init__.
    if prefix is None or not prefix.c_obj:
        raise errors.UsageError("a SwappedPrefix is made by Context.copy_out or Context.ghost")
    return prefix.c_obj.get()


cdef class SwappedPrefix:
    """Cells of an idle prefix, in plain memory."""

    cdef shared_ptr[const core.CppSwappedPrefix] c_obj
    cdef readonly int32_t n_tokens
    cdef readonly size_t n_bytes
    cdef readonly double seconds

    def __init__(self):
        raise TypeError("a SwappedPrefix is made by Context.copy_out or Context.ghost")

    @property
    def tokens(self):
        return as_made(self).tokens()

    def __dealloc__(self):
        # Giving back a hundred MiB takes a while.
        with nogil:
            self.c_obj.reset()


cdef SwappedPrefix swapped_prefix(shared_ptr[const core.CppSwappedPrefix] made):
    cdef SwappedPrefix prefix = SwappedPrefix.__new__(SwappedPrefix)
    prefix.c_obj = made
    prefix.n_tokens = made.get().n_tokens()
    prefix.n_bytes = made.get().n_bytes()
    prefix.seconds = made.get().seconds()
    return prefix


cdef int natural(str name, object number) except -1:
    if number < 1:
        raise errors.UsageError(f"{name} must be positive")
    if number > MOST_INT:
        raise errors.ContextError(f"{name} is {number}, and can be {MOST_INT} at most")
    return number


cdef class Context:
    """A llama.cpp context: its cells, its sequences, and the one function that computes.

    Obey these rules: one thread at a time (a second one gets ContextBusy while a step runs); `open` an idle seq_id,
    `step` it, `close` it; arrays from `logits` show the last step only, and the next one overwrites them.
    """

    cdef unique_ptr[core.CppContext] c_obj
    cdef readonly Model model
    cdef set logprob_seqs  # sequences whose sampler computes logprobs

    def __cinit__(self, Model model not None, *, n_ctx, n_seq_max, n_batch, n_threads,
                  n_threads_batch=None, cbool adapt_threads=False, cbool kv_unified=True, cbool offload_kqv=True,
                  int flash_attention=-1,
                  int type_k=1, int type_v=1, int checkpoint_interval=64, int n_checkpoints=4, checkpoint_bytes=1 << 30,
                  row_padding=None, cut_seconds=None, cbool abortable=True, cbool trust_any_memory=False):
        cdef core.ContextParams params
        params.n_ctx = natural("n_ctx", n_ctx)
        params.kv_unified = kv_unified
        params.n_seq_max = natural("n_seq_max", n_seq_max)
        params.n_batch = natural("n_batch", n_batch)
        params.n_threads = natural("n_threads", n_threads)
        params.n_threads_batch = natural("n_threads_batch", n_threads if n_threads_batch is None else n_threads_batch)
        params.adapt_threads = adapt_threads
        params.offload_kqv = offload_kqv
        params.flash_attention = flash_attention
        params.type_k = type_k
        params.type_v = type_v
        params.checkpoint_interval = checkpoint_interval
        params.n_checkpoints = n_checkpoints
        params.checkpoint_bytes = checkpoint_bytes
        params.row_padding = -1 if row_padding is None else <int> bool(row_padding)
        params.cut_seconds = -1.0 if cut_seconds is None else <double> cut_seconds
        params.abortable = abortable
        params.trust_any_memory = trust_any_memory
        self.model = model
        self.logprob_seqs = set()
        with nogil:
            self.c_obj = core.make_context(model.c_obj, params)

    def __dealloc__(self):
        # Joins the compute threads: never while holding the GIL.
        with nogil:
            self.c_obj.reset()

    @property
    def n_threads(self):
        return self.c_obj.get().n_threads()

    @property
    def n_ctx(self):
        return self.c_obj.get().n_ctx()

    @property
    def n_cells(self):
        return self.c_obj.get().n_cells()

    @property
    def kv_unified(self):
        return self.c_obj.get().kv_unified()

    @property
    def n_seq_max(self):
        return self.c_obj.get().n_seq_max()

    @property
    def n_batch(self):
        return self.c_obj.get().n_batch()

    @property
    def n_cells_used(self):
        return self.c_obj.get().n_cells_used()

    @property
    def checkpoint_bytes(self):
        return self.c_obj.get().checkpoint_bytes()

    @property
    def n_padding(self):
        return self.c_obj.get().n_padding()

    @property
    def checkpoint_us(self):
        return self.c_obj.get().checkpoint_us()

    @property
    def memory_kind(self):
        return MEMORY_KINDS[<int> self.c_obj.get().memory_kind()]

    def open(self, int32_t seq, tokens, Sampler sampler not None, CancelFlag flag not None, *, cbool reuse=True,
             int32_t n_described=0):
        cdef vector[core.llama_token] c_tokens = tokens
        cdef core.OpenOptions options
        options.reuse = reuse
        options.n_described = n_described
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

    def common_prefixes(self, tokens):
        cdef vector[core.llama_token] c_tokens = tokens
        cdef int32_t seq
        return [self.c_obj.get().common_prefix(seq, c_tokens) for seq in range(self.c_obj.get().n_seq_max())]

    def share_prefix(self, int32_t source, int32_t target, int32_t n_tokens, *, size_t max_bytes):
        cdef cbool shared
        with nogil:
            shared = self.c_obj.get().share_prefix(source, target, n_tokens, max_bytes)
        return shared

    @property
    def can_swap(self):
        return self.c_obj.get().can_swap()

    @property
    def can_offload(self):
        return self.c_obj.get().can_offload()

    def common_with(self, prefixes, tokens):
        cdef vector[core.llama_token] c_tokens = tokens
        return [as_made(prefix).common_prefix(c_tokens) for prefix in prefixes]

    def swap_bytes(self, int32_t seq):
        return self.c_obj.get().swap_bytes(seq)

    def copy_out(self, int32_t seq, *, size_t max_bytes):
        cdef shared_ptr[const core.CppSwappedPrefix] made
        with nogil:
            made = self.c_obj.get().copy_out(seq, max_bytes)
        return swapped_prefix(made) if made else None

    def ghost(self, int32_t seq):
        return swapped_prefix(self.c_obj.get().ghost(seq))

    def swap_in(self, int32_t seq, SwappedPrefix prefix not None):
        cdef cbool swapped
        cdef const core.CppSwappedPrefix * made = as_made(prefix)
        with nogil:
            swapped = self.c_obj.get().swap_in(seq, made[0])
        return swapped

    def step(self, items, *, double fixed_cost=0.0, double cost_per_token=1.0):
        cdef vector[core.StepItem] c_items
        cdef core.StepItem c_item
        for seq, n_tokens in items:
            c_item.seq = seq
            c_item.n_tokens = n_tokens
            c_items.push_back(c_item)
        cdef core.StepCost cost
        cost.fixed = fixed_cost
        cost.per_token = cost_per_token
        cdef core.CppStepResult result
        with nogil:
            result = self.c_obj.get().step(c_items, cost)
        cdef size_t i
        rows = []
        for i in range(result.rows.size()):
            rows.append(step_row(result.rows[i], result.rows[i].seq in self.logprob_seqs))
        return StepResult(STATUSES[<int> result.status], rows, result.spared, result.polls, result.decode_us,
                          result.sample_us, result.n_threads)

    def raise_at(self, int poll, CancelFlag flag not None):
        self.c_obj.get().raise_at(poll, flag.c_obj)

    def n_committed(self, int32_t seq):
        return self.c_obj.get().n_committed(seq)

    def n_cells_of(self, seqs):
        return self.c_obj.get().n_cells_of(seqs)

    def tokens(self, int32_t seq):
        return self.c_obj.get().tokens(seq)

    def logits(self, int32_t seq):
        cdef const float * data = self.c_obj.get().logits(seq)
        if data == NULL:
            return None
        cdef _Logits row = _Logits()
        row.context = self
        row.data = data
        row.format = "f"
        row.itemsize = sizeof(float)
        row.length = self.model.n_vocab
        return np.asarray(row)


cdef class _Embedding(_Array):
    cdef vector[float] values


cdef object embedding_array(vector[float] & values):
    cdef _Embedding embedding = _Embedding()
    embedding.values = move(values)
    embedding.data = embedding.values.data()
    embedding.format = "f"
    embedding.itemsize = sizeof(float)
    embedding.length = <Py_ssize_t> embedding.values.size()
    return np.asarray(embedding)


cdef class Embedder:
    """A llama.cpp context that pools: texts in, one normalised vector out for each.

    The rules are Context's: one thread at a time, and `open`, `step`, `close`. Arrays are the reader's to keep.
    """

    cdef unique_ptr[core.CppEmbedder] c_obj
    cdef readonly Model model

    def __cinit__(self, Model model not None, *, n_ctx, n_seq_max, n_batch, n_threads,
                  n_threads_batch=None, cbool adapt_threads=False, pooling=None, cbool offload_kqv=True,
                  int flash_attention=-1, int type_k=1, int type_v=1, cut_seconds=None, cbool abortable=True):
        cdef core.EmbedderParams params
        params.n_ctx = natural("n_ctx", n_ctx)
        params.n_seq_max = natural("n_seq_max", n_seq_max)
        params.n_batch = natural("n_batch", n_batch)
        params.n_threads = natural("n_threads", n_threads)
        params.n_threads_batch = natural("n_threads_batch", n_threads if n_threads_batch is None else n_threads_batch)
        params.adapt_threads = adapt_threads
        params.pooling = -1 if pooling is None else pooling
        params.offload_kqv = offload_kqv
        params.flash_attention = flash_attention
        params.type_k = type_k
        params.type_v = type_v
        params.cut_seconds = -1.0 if cut_seconds is None else <double> cut_seconds
        params.abortable = abortable
        self.model = model
        with nogil:
            self.c_obj = core.make_embedder(model.c_obj, params)

    def __dealloc__(self):
        # Joins the compute threads: never while holding the GIL.
        with nogil:
            self.c_obj.reset()

    @property
    def n_threads(self):
        return self.c_obj.get().n_threads()

    @property
    def n_ctx(self):
        return self.c_obj.get().n_ctx()

    @property
    def n_seq_max(self):
        return self.c_obj.get().n_seq_max()

    @property
    def n_batch(self):
        return self.c_obj.get().n_batch()

    @property
    def n_text_max(self):
        return self.c_obj.get().n_text_max()

    @property
    def n_embd(self):
        return self.c_obj.get().n_embd()

    @property
    def n_cells_used(self):
        return self.c_obj.get().n_cells_used()

    @property
    def pooling(self):
        return Pooling(self.c_obj.get().pooling())

    @property
    def splits(self):
        return self.c_obj.get().splits()

    @property
    def memory_kind(self):
        return MEMORY_KINDS[<int> self.c_obj.get().memory_kind()]

    def open(self, int32_t seq, tokens, CancelFlag flag not None):
        cdef vector[core.llama_token] c_tokens = tokens
        with nogil:
            self.c_obj.get().open(seq, move(c_tokens), flag.c_obj)

    def close(self, int32_t seq):
        with nogil:
            self.c_obj.get().close(seq)

    def rest(self):
        with nogil:
            self.c_obj.get().rest()

    def step(self, items, *, double fixed_cost=0.0, double cost_per_token=1.0):
        cdef vector[core.StepItem] c_items
        cdef core.StepItem c_item
        for seq, n_tokens in items:
            c_item.seq = seq
            c_item.n_tokens = n_tokens
            c_items.push_back(c_item)
        cdef core.StepCost cost
        cost.fixed = fixed_cost
        cost.per_token = cost_per_token
        cdef core.CppEmbedResult result
        with nogil:
            result = self.c_obj.get().step(c_items, cost)
        cdef size_t i
        rows = []
        for i in range(result.rows.size()):
            array = None if result.rows[i].embedding.empty() else embedding_array(result.rows[i].embedding)
            rows.append(EmbedRow(result.rows[i].seq, result.rows[i].n_tokens, array, result.rows[i].faulty))
        return EmbedResult(STATUSES[<int> result.status], rows, result.spared, result.polls, result.decode_us,
                           result.n_threads)

    def raise_at(self, int poll, CancelFlag flag not None):
        self.c_obj.get().raise_at(poll, flag.c_obj)

    def n_committed(self, int32_t seq):
        return self.c_obj.get().n_committed(seq)
