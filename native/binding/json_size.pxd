from libc.stdint cimport int32_t


cdef extern from "<string_view>" namespace "std" nogil:
    cdef cppclass string_view:
        string_view()
        string_view(const char * text, size_t length)
        const char * data()
        size_t size()


cdef extern from "platform/json_size.hpp" namespace "pyllmcancel" nogil:
    cdef enum class JsonExcess(int32_t):
        none
        values
        depth
        fields

    cdef cppclass JsonLimits:
        size_t values
        size_t depth
        size_t fields

    cdef cppclass CppJsonSize "pyllmcancel::JsonSize":
        JsonExcess excess
        string_view key

    CppJsonSize json_size(string_view text, const JsonLimits & limits)
