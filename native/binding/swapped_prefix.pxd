from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from llama cimport llama_token


cdef extern from "cells/swapped_prefix.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppSwappedPrefix "pyllmcancel::SwappedPrefix":
        int32_t common_prefix(const vector[llama_token] & tokens)
        const vector[llama_token] & tokens()
        int32_t n_tokens()
        size_t n_bytes()
