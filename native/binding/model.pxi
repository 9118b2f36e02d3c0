from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

cimport llama
from factories cimport make_progress
from model cimport CppModel, MemoryKind, ModelParams, Progress, count

import os

from pyllmcancel import errors
from pyllmcancel.adapters import Adapter

cdef dict MEMORY_KINDS = {
    <int> MemoryKind.attention: "attention",
    <int> MemoryKind.recurrent: "recurrent",
    <int> MemoryKind.hybrid: "hybrid",
    <int> MemoryKind.none: "none",
}


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

    cdef shared_ptr[CppModel] c_obj
    cdef readonly int32_t n_ctx_train, n_embd, n_layer, n_swa, n_vocab, n_scores, n_heads
    cdef readonly uint64_t n_params, size
    cdef readonly cbool can_divide_cells, adds_bos, adds_eos, adds_sep
    cdef readonly str memory_kind
    cdef int64_t longest  # bytes of the longest piece, once it was asked for

    def __init__(self, *_arguments, **_options):
        raise TypeError("a Model is made by Model.load")

    @staticmethod
    def load(path, *, int n_gpu_layers=0, placement=None, cbool mmap=True, cbool mlock=False,
             cbool check_tensors=False, cbool require_vocabulary=True, cbool without_weights=False, lora=(),
             cbool heads=False, progress=None, double progress_interval=0.1):
        cdef string c_path = os.fsencode(path)
        cdef ModelParams params
        if placement is not None:
            params.placement = placement_of(placement)
        else:
            params.placement.n_gpu_layers = n_gpu_layers
        params.use_mmap = mmap
        params.use_mlock = mlock
        params.check_tensors = check_tensors
        params.require_vocabulary = require_vocabulary
        params.without_weights = without_weights
        params.heads = heads
        params.progress_interval_us = <int64_t> (progress_interval * 1e6)
        cdef string c_adapter
        for adapter in lora:
            c_adapter = os.fsencode(adapter)
            params.lora.push_back(c_adapter)
        cdef _Loading loading = _Loading()
        loading.progress = progress
        cdef Progress c_progress
        if progress is not None:
            c_progress = make_progress(<cbool (*)(float, void *) noexcept nogil> on_progress, <void *> loading)
        cdef Model model = Model.__new__(Model)
        model.longest = -1
        try:
            with nogil:
                model.c_obj = CppModel.load(c_path, params, c_progress)
        except errors.LoadCancelled:
            if loading.error is not None:
                raise loading.error
            raise
        model.read_sizes()
        return model

    cdef void read_sizes(self) except *:
        cdef const llama.llama_model * handle = self.c_obj.get().handle()
        cdef const llama.llama_vocab * vocab = self.c_obj.get().vocab()
        self.n_ctx_train = llama.llama_model_n_ctx_train(handle)
        self.n_embd = llama.llama_model_n_embd(handle)
        self.n_layer = llama.llama_model_n_layer(handle)
        self.n_swa = llama.llama_model_n_swa(handle)
        self.n_params = llama.llama_model_n_params(handle)
        self.size = llama.llama_model_size(handle)
        self.n_vocab = llama.llama_vocab_n_tokens(vocab)
        self.adds_bos = llama.llama_vocab_get_add_bos(vocab)
        self.adds_eos = llama.llama_vocab_get_add_eos(vocab)
        self.adds_sep = llama.llama_vocab_get_add_sep(vocab)
        self.n_scores = self.c_obj.get().n_scores()
        self.n_heads = count(handle)
        self.memory_kind = MEMORY_KINDS[<int> self.c_obj.get().memory_kind()]
        self.can_divide_cells = self.c_obj.get().can_divide_cells()

    def __dealloc__(self):
        # Unmapping gigabytes takes a while, and other threads need the GIL.
        with nogil:
            self.c_obj.reset()

    @property
    def has_invariant_rows(self):
        return self.c_obj.get().has_invariant_rows()

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
    def layers_by_device(self):
        counts = {}
        for entry in self.c_obj.get().layers_by_device():
            name = decoded(entry.first)
            counts[name] = counts.get(name, 0) + entry.second
        return counts

    @property
    def is_offloaded(self):
        return self.c_obj.get().is_offloaded()

    @property
    def adapters(self):
        return [
            Adapter(decoded(facts.task_name), decoded(facts.prompt_prefix), tuple(facts.invocation_tokens))
            for facts in self.c_obj.get().adapters().facts()
        ]

    @property
    def chat_template(self):
        cdef string text = self.c_obj.get().chat_template()
        return text.decode("utf-8", "replace") if not text.empty() else None

    @property
    def labels(self):
        return [decoded(label) for label in self.c_obj.get().labels()]

    @property
    def special_tokens(self):
        cdef const llama.llama_vocab * vocab = self.c_obj.get().vocab()
        named = {
            "bos": llama.llama_vocab_bos(vocab),
            "eos": llama.llama_vocab_eos(vocab),
            "eot": llama.llama_vocab_eot(vocab),
            "sep": llama.llama_vocab_sep(vocab),
            "fim_pre": llama.llama_vocab_fim_pre(vocab),
            "fim_suf": llama.llama_vocab_fim_suf(vocab),
            "fim_mid": llama.llama_vocab_fim_mid(vocab),
            "fim_pad": llama.llama_vocab_fim_pad(vocab),
            "fim_rep": llama.llama_vocab_fim_rep(vocab),
            "fim_sep": llama.llama_vocab_fim_sep(vocab),
        }
        return {name: token for name, token in named.items() if token >= 0}

    def is_eog(self, int32_t token):
        return 0 <= token < self.n_vocab and llama.llama_vocab_is_eog(self.c_obj.get().vocab(), token)

    def tokenize(self, text, *, cbool add_special=True, cbool parse_special=False):
        cdef string c_text = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        cdef vector[llama.llama_token] tokens
        with nogil:
            tokens = self.c_obj.get().tokenize(c_text, add_special, parse_special)
        return tokens

    def eog_tokens(self):
        cdef vector[llama.llama_token] tokens
        with nogil:
            tokens = self.c_obj.get().eog_tokens()
        return tokens

    def longest_piece(self):
        if self.longest < 0:
            with nogil:
                self.longest = self.c_obj.get().longest_piece()
        return self.longest

    def piece(self, int32_t token, *, cbool special=False):
        return self.c_obj.get().piece(token, special)

    def pieces(self, *, cbool special=False):
        cdef vector[string] found
        with nogil:
            found = self.c_obj.get().pieces(special)
        return found
