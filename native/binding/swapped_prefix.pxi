from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.stdint cimport int32_t
from libcpp.memory cimport shared_ptr
from libcpp.utility cimport move
from libcpp.vector cimport vector

from llama cimport llama_token
from swapped_prefix cimport CppSwappedPrefix, PrefixPart


cdef class _PrefixState:
    # The bytes of one state of a prefix.
    cdef shared_ptr[const CppSwappedPrefix] c_obj  # owns them
    cdef size_t index
    cdef bint writable

    def __getbuffer__(self, Py_buffer * buffer, int flags):
        cdef size_t size = self.c_obj.get().part(self.index).size()
        PyBuffer_FillInfo(buffer, self, self.c_obj.get().part(self.index).data(), size, not self.writable, flags)


cdef class SwappedPrefix:
    """The memory of an idle prefix, copied out of a context."""

    cdef shared_ptr[const CppSwappedPrefix] c_obj
    cdef readonly int32_t n_tokens
    cdef readonly size_t n_bytes

    def __init__(self):
        raise TypeError("a SwappedPrefix is made by Context.copy_out, or by blank")

    @staticmethod
    def blank(tokens, int32_t least, parts):
        cdef vector[llama_token] c_tokens = tokens
        cdef vector[PrefixPart] c_parts
        cdef PrefixPart c_part
        cdef shared_ptr[const CppSwappedPrefix] made
        for n_tokens, n_bytes in parts:
            c_part.n_tokens = n_tokens
            c_part.n_bytes = n_bytes
            c_parts.push_back(c_part)
        with nogil:
            made = CppSwappedPrefix.blank(move(c_tokens), least, c_parts)
        if not made:
            return None
        prefix = swapped_prefix(made)
        return prefix, [prefix_state(made, index, True) for index in range(c_parts.size())]

    @property
    def tokens(self):
        return self.c_obj.get().tokens()

    @property
    def least(self):
        return self.c_obj.get().least()

    @property
    def parts(self):
        cdef size_t index
        return [(self.c_obj.get().part_length(index), prefix_state(self.c_obj, index, False))
                for index in range(self.c_obj.get().n_parts())]

    def __dealloc__(self):
        # Giving back a hundred MiB takes a while.
        with nogil:
            self.c_obj.reset()


cdef object prefix_state(shared_ptr[const CppSwappedPrefix] prefix, size_t index, bint writable):
    cdef _PrefixState state = _PrefixState.__new__(_PrefixState)
    state.c_obj = prefix
    state.index = index
    state.writable = writable
    return memoryview(state)


cdef SwappedPrefix swapped_prefix(shared_ptr[const CppSwappedPrefix] made):
    cdef SwappedPrefix prefix = SwappedPrefix.__new__(SwappedPrefix)
    prefix.c_obj = made
    prefix.n_tokens = made.get().n_tokens()
    prefix.n_bytes = made.get().n_bytes()
    return prefix
