# Results of the core as NumPy arrays: read-only, not copied, each with the memory that it shows.

from cpython.buffer cimport PyBUF_WRITABLE
from libcpp.utility cimport move
from libcpp.vector cimport vector

from sampler cimport Sampled, TokenLogprob

import numpy as np


cdef class _Array:
    # One-dimensional; a subclass keeps the memory alive.
    cdef const void * data
    cdef const char * format
    cdef Py_ssize_t itemsize
    cdef Py_ssize_t length

    cdef object show(self, const void * data, const char * format, Py_ssize_t itemsize, Py_ssize_t length):
        self.data = data
        self.format = format
        self.itemsize = itemsize
        self.length = length
        return np.asarray(self)

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


cdef class _TopLogprobs(_Array):
    cdef vector[TokenLogprob] records


cdef object top_logprobs(Sampled & sampled):
    cdef _TopLogprobs top = _TopLogprobs()
    top.records = move(sampled.top)
    return top.show(top.records.data(), "T{i:token:f:logprob:}", sizeof(TokenLogprob), top.records.size())


cdef class _Embedding(_Array):
    cdef vector[float] values


cdef object embedding_array(vector[float] & values):
    cdef _Embedding embedding = _Embedding()
    embedding.values = move(values)
    return embedding.show(embedding.values.data(), "f", sizeof(float), embedding.values.size())
