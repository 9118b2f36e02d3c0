cdef extern from "assertions.hpp" namespace "pyllmcancel" nogil:
    void set_last_words(void (*say)(const char * message) noexcept nogil)
