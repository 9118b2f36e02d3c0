from libc.stdint cimport int32_t
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from llama cimport llama_token
from translate cimport translate_exception


cdef extern from "model/adapters.hpp" namespace "pyllmcancel" nogil:
    ctypedef vector[pair[int32_t, float]] AdapterScales

    cdef cppclass AdapterFacts:
        string task_name
        string prompt_prefix
        vector[llama_token] invocation_tokens

    cdef cppclass CppAdapters "pyllmcancel::Adapters":
        vector[AdapterFacts] facts() except +translate_exception
