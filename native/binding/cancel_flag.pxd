from libcpp cimport bool as cbool


cdef extern from "step/cancel_flag.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppCancelFlag "pyllmcancel::CancelFlag":
        CppCancelFlag()
        void raise_flag "raise"()
        cbool raised()
