from libc.stdint cimport int32_t, int64_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from cancel_flag cimport CppCancelFlag
from llama cimport llama_token
from model cimport CppModel
from translate cimport translate_exception


cdef extern from "cells/media_chunk.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass MediaLayout:
        llama_token first_token
        int32_t n_tokens
        int32_t n_pos
        cbool non_causal
        cbool is_divisible()

    cdef cppclass MediaRows "pyllmcancel::MediaRows":
        const float * data()
        size_t size()

    cdef cppclass CppMediaChunk "pyllmcancel::MediaChunk":
        const shared_ptr[const MediaLayout] & layout()
        shared_ptr[const MediaRows] rows()
        size_t n_bytes()


cdef extern from "cells/media_spans.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass MediaInput:
        int32_t start
        shared_ptr[const CppMediaChunk] chunk


cdef extern from "devices/turns.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass Turns:
        pass


cdef extern from "media/encode_gate.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppAudience "pyllmcancel::Audience":
        void join(shared_ptr[const CppCancelFlag] flag) except +translate_exception
        void leave() except +translate_exception
        cbool has_left() except +translate_exception


cdef extern from "media/media_encoder.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass MediaParams:
        int32_t n_threads
        cbool offload
        int32_t image_min_tokens
        int32_t image_max_tokens
        cbool every_node

    cdef cppclass MediaPart:
        vector[llama_token] tokens
        shared_ptr[CppMediaChunk] chunk

    cdef cppclass CppMediaEncoder "pyllmcancel::MediaEncoder":
        cbool has_vision()
        cbool has_audio()
        int32_t sample_rate()
        int64_t n_image_tokens(int32_t width, int32_t height) except +translate_exception
        cbool encode(
            CppMediaChunk & chunk, const shared_ptr[const CppAudience] & audience
        ) except +translate_exception
        void raise_at(uint32_t node, shared_ptr[CppCancelFlag] flag)
        uint32_t polls()
        const shared_ptr[Turns] & turns()


cdef extern from "binding/media.hpp" namespace "pyllmcancel" nogil:
    unique_ptr[CppMediaEncoder] make_media_encoder(
        shared_ptr[CppModel] model, const string & path, const MediaParams & params
    ) except +translate_exception
    vector[MediaPart] parts_of(
        CppMediaEncoder & encoder, const char * data, size_t size, cbool is_audio, llama_token first,
        const CppCancelFlag & flag, double seconds
    ) except +translate_exception
    cbool size_of_image(const char * data, size_t size, int32_t * width, int32_t * height)
    shared_ptr[CppAudience] make_audience() except +translate_exception
