from libc.stdint cimport int32_t
from libcpp.memory cimport shared_ptr

from swapped_prefix cimport CppSwappedPrefix


cdef class SwappedPrefix:
    """Cells of an idle prefix, in plain memory."""

    cdef shared_ptr[const CppSwappedPrefix] c_obj
    cdef readonly int32_t n_tokens
    cdef readonly size_t n_bytes

    def __init__(self):
        raise TypeError("a SwappedPrefix is made by Context.copy_out")

    @property
    def tokens(self):
        return self.c_obj.get().tokens()

    def __dealloc__(self):
        # Giving back a hundred MiB takes a while.
        with nogil:
            self.c_obj.reset()


cdef SwappedPrefix swapped_prefix(shared_ptr[const CppSwappedPrefix] made):
    cdef SwappedPrefix prefix = SwappedPrefix.__new__(SwappedPrefix)
    prefix.c_obj = made
    prefix.n_tokens = made.get().n_tokens()
    prefix.n_bytes = made.get().n_bytes()
    return prefix
