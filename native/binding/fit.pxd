from libc.stdint cimport uint64_t
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from context cimport ContextParams
from embedder cimport EmbedderParams
from llama cimport llama_context_params
from placement cimport CppPlacement
from translate cimport translate_exception


cdef extern from "devices/fit.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppDeviceUse "pyllmcancel::DeviceUse":
        string name
        uint64_t total
        uint64_t free
        uint64_t weights
        uint64_t cells
        uint64_t buffers

    vector[CppDeviceUse] c_memory_use "pyllmcancel::memory_use"(
        const string & path, const CppPlacement & placement, const llama_context_params & context
    ) except +translate_exception
    optional[CppPlacement] c_fitted "pyllmcancel::fitted"(
        const string & path, const CppPlacement & placement, const llama_context_params & context,
        const vector[uint64_t] & margins
    ) except +translate_exception


cdef extern from "step/context.hpp" namespace "pyllmcancel" nogil:
    llama_context_params context_llama_params "pyllmcancel::llama_params"(const ContextParams & params)


cdef extern from "step/embedder.hpp" namespace "pyllmcancel" nogil:
    llama_context_params embedder_llama_params "pyllmcancel::llama_params"(const EmbedderParams & params)
