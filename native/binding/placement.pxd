from libc.stdint cimport int32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from translate cimport translate_exception


cdef extern from "devices/devices.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppDevice "pyllmcancel::Device":
        string name
        string description
        string back_end
        uint64_t total
        uint64_t free
        cbool preferred
        cbool accelerator

    vector[CppDevice] c_devices "pyllmcancel::devices"() except +translate_exception
    vector[string] c_buffer_types "pyllmcancel::buffer_types"() except +translate_exception


cdef extern from "devices/placement.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass CppPlacement "pyllmcancel::Placement":
        int32_t n_gpu_layers
        cbool names_devices
        vector[string] devices
        int32_t split_mode
        vector[float] tensor_split
        int32_t main_gpu
        vector[pair[string, string]] overrides

    void c_check_tensor_pattern "pyllmcancel::check_tensor_pattern"(
        const string & pattern
    ) except +translate_exception
