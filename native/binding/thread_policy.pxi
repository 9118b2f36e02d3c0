from libc.stdint cimport int32_t, int64_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from thread_policy cimport CoreTimes, CppThreadPolicy, c_idle_ticks, c_n_runnable


def idle_ticks(text, cpus):
    cdef optional[int64_t] ticks = c_idle_ticks(<string> text, <vector[int]> cpus)
    return ticks.value() if ticks.has_value() else None


def n_runnable(text):
    return c_n_runnable(<string> text)


cdef class ThreadPolicy:
    """Decides how many threads a step should have."""

    cdef unique_ptr[CppThreadPolicy] c_obj

    def __cinit__(self, int32_t most):
        self.c_obj.reset(new CppThreadPolicy(most))

    @property
    def n_threads(self):
        return self.c_obj.get().n_threads()

    def rest(self):
        self.c_obj.get().rest()

    def take(self, int64_t at, int64_t idle, int64_t own, int32_t n_crowded_out=0):
        cdef CoreTimes now
        now.at = at
        now.idle = idle
        now.own = own
        self.c_obj.get().take(now, n_crowded_out)
        return self.c_obj.get().n_threads()
