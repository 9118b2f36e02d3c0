from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from adapters cimport CppAdapters
from llama cimport llama_model, llama_token, llama_vocab
from placement cimport CppPlacement
from translate cimport translate_exception


cdef extern from "model/heads.hpp" namespace "pyllmcancel::heads" nogil:
    int32_t count(const llama_model * model) except +translate_exception


cdef extern from "model/model.hpp" namespace "pyllmcancel" nogil:
    cdef enum class MemoryKind(int32_t):
        attention
        recurrent
        hybrid
        none

    cdef cppclass ModelParams:
        CppPlacement placement
        cbool use_mmap
        cbool use_mlock
        cbool check_tensors
        vector[string] lora
        int64_t progress_interval_us
        cbool require_vocabulary
        cbool without_weights
        cbool heads

    cdef cppclass Progress:
        pass

    cdef cppclass CppModel "pyllmcancel::Model":
        const CppAdapters & adapters()

        @staticmethod
        shared_ptr[CppModel] load(
            string path, const ModelParams & params, const Progress & progress
        ) except +translate_exception
        llama_model * handle()
        const llama_vocab * vocab()
        MemoryKind memory_kind()
        cbool can_divide_cells()
        cbool has_invariant_rows() except +translate_exception
        vector[pair[string, int32_t]] layers_by_device() except +translate_exception
        cbool is_offloaded() except +translate_exception
        string description() except +translate_exception
        vector[pair[string, string]] metadata() except +translate_exception
        string chat_template() except +translate_exception
        int32_t n_scores()
        vector[string] labels() except +translate_exception
        vector[llama_token] tokenize(
            const string & text, cbool add_special, cbool parse_special
        ) except +translate_exception
        size_t longest_piece() except +translate_exception
        string piece(llama_token token, cbool special) except +translate_exception
        vector[string] pieces(cbool special) except +translate_exception
        vector[llama_token] eog_tokens() except +translate_exception
