# The placement of weights: devices, and a placement for the core.

from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from placement cimport CppDevice, CppPlacement, c_buffer_types, c_check_tensor_pattern, c_devices

from pyllmcancel.placement import SPLIT_MODES as _SPLIT_MODES
from pyllmcancel.placement import Device


cdef str decoded(const string & text):
    return text.decode("utf-8", "replace")


cdef CppPlacement placement_of(object placement) except *:
    cdef CppPlacement c_placement
    cdef pair[string, string] override
    c_placement.n_gpu_layers = placement.last_layers()
    c_placement.names_devices = placement.devices is not None
    for name in placement.devices or ():
        c_placement.devices.push_back(name.encode())
    c_placement.split_mode = _SPLIT_MODES[placement.split_mode]
    c_placement.tensor_split = placement.tensor_split
    c_placement.main_gpu = placement.main_gpu
    for pattern, buffer_type in placement.overrides():
        override.first = pattern.encode()
        override.second = buffer_type.encode()
        c_placement.overrides.push_back(override)
    return c_placement


def devices():
    cdef vector[CppDevice] found
    with nogil:  # the first call starts the back ends
        found = c_devices()
    return [
        Device(decoded(one.name), decoded(one.description), decoded(one.back_end), one.total, one.free, one.preferred,
               one.accelerator)
        for one in found
    ]


def buffer_types():
    return [decoded(name) for name in c_buffer_types()]


def check_tensor_pattern(str pattern not None):
    c_check_tensor_pattern(pattern.encode())
