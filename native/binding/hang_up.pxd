from libcpp cimport bool as cbool


cdef extern from "platform/hang_up.hpp" namespace "pyllmcancel" nogil:
    cbool c_has_hung_up "pyllmcancel::has_hung_up"(int socket)
