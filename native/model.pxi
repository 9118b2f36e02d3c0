from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

cimport llama
from factories cimport make_progress
from model cimport CppModel, MemoryKind, ModelParams, Progress

import os

from pyllmcancel import errors

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
    cdef int64_t longest  # bytes of the longest piece, once it was asked for

    def __init__(self, *_arguments, **_options):
        raise TypeError("a Model is made by Model.load")

    @staticmethod
    def load(path, *, int n_gpu_layers=0, cbool mmap=True, cbool mlock=False, cbool check_tensors=False,
             cbool require_vocabulary=True, lora=(), progress=None, double progress_interval=0.1):
        cdef string c_path = os.fsencode(path)
        cdef ModelParams params
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
        return model

    def __dealloc__(self):
        # Unmapping gigabytes takes a while; nobody else need wait for it.
        with nogil:
            self.c_obj.reset()

    @property
    def n_ctx_train(self):
        return llama.llama_model_n_ctx_train(self.c_obj.get().handle())

    @property
    def n_embd(self):
        return llama.llama_model_n_embd(self.c_obj.get().handle())

    @property
    def n_layer(self):
        return llama.llama_model_n_layer(self.c_obj.get().handle())

    @property
    def n_swa(self):
        return llama.llama_model_n_swa(self.c_obj.get().handle())

    @property
    def n_params(self):
        return llama.llama_model_n_params(self.c_obj.get().handle())

    @property
    def size(self):
        return llama.llama_model_size(self.c_obj.get().handle())

    @property
    def n_vocab(self):
        return llama.llama_vocab_n_tokens(self.c_obj.get().vocab())

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
        cdef const llama.llama_vocab * vocab = self.c_obj.get().vocab()
        named = {
            "bos": llama.llama_vocab_bos(vocab),
            "eos": llama.llama_vocab_eos(vocab),
            "eot": llama.llama_vocab_eot(vocab),
            "fim_pre": llama.llama_vocab_fim_pre(vocab),
            "fim_suf": llama.llama_vocab_fim_suf(vocab),
            "fim_mid": llama.llama_vocab_fim_mid(vocab),
            "fim_pad": llama.llama_vocab_fim_pad(vocab),
            "fim_rep": llama.llama_vocab_fim_rep(vocab),
            "fim_sep": llama.llama_vocab_fim_sep(vocab),
        }
        return {name: token for name, token in named.items() if token >= 0}

    @property
    def adds_bos(self):
        return llama.llama_vocab_get_add_bos(self.c_obj.get().vocab())

    def is_eog(self, int32_t token):
        return 0 <= token < self.n_vocab and llama.llama_vocab_is_eog(self.c_obj.get().vocab(), token)

    def tokenize(self, text, *, cbool add_special=True, cbool parse_special=False):
        cdef string c_text = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        cdef vector[llama.llama_token] tokens
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
