cdef extern from "platform/assertions.hpp" namespace "pyllmcancel" nogil:
    void set_last_words(void (*say)(const char * message) noexcept nogil)
