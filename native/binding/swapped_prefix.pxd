from libc.stdint cimport int32_t, uint8_t
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from llama cimport llama_token
from translate cimport translate_exception


cdef extern from "cells/pages.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass Pages:
        uint8_t * data()
        size_t size()


cdef extern from "cells/swapped_prefix.hpp" namespace "pyllmcancel" nogil:
    cdef struct PrefixPart:
        int32_t n_tokens
        size_t n_bytes

    cdef cppclass CppSwappedPrefix "pyllmcancel::SwappedPrefix":
        @staticmethod
        shared_ptr[const CppSwappedPrefix] blank(
            vector[llama_token] tokens, int32_t least, const vector[PrefixPart] & parts
        ) except +translate_exception
        int32_t common_prefix(const vector[llama_token] & tokens)
        const vector[llama_token] & tokens()
        int32_t n_tokens()
        size_t n_bytes()
        int32_t least()
        size_t n_parts()
        int32_t part_length(size_t index) except +translate_exception
        const Pages & part(size_t index) except +translate_exception
