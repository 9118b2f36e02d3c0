from libcpp.memory cimport make_shared, shared_ptr

from cancel_flag cimport CppCancelFlag


cdef class CancelFlag:
    """The sticky flag of one request, read by ggml between graph nodes."""

    cdef shared_ptr[CppCancelFlag] c_obj

    def __cinit__(self):
        self.c_obj = make_shared[CppCancelFlag]()

    def set(self):
        self.c_obj.get().raise_flag()

    def is_set(self):
        return self.c_obj.get().raised()
