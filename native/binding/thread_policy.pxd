from libc.stdint cimport int32_t, int64_t
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "devices/core_times.hpp" namespace "pyllmcancel" nogil:
    cdef struct CoreTimes:
        int64_t at
        int64_t idle
        int64_t own

    optional[int64_t] c_idle_ticks "pyllmcancel::idle_ticks"(string text, const vector[int] & cpus)
    int32_t c_n_runnable "pyllmcancel::n_runnable"(string text)


cdef extern from "devices/thread_policy.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppThreadPolicy "pyllmcancel::ThreadPolicy":
        CppThreadPolicy(int32_t most)
        int32_t n_threads()
        void rest()
        void take(const CoreTimes & now, int32_t n_crowded_out)
