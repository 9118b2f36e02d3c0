# cython: freethreading_compatible = False
"""llama.cpp as pyllmcancel sees it. Marshalling only: concurrency lives in C++, policy in Python.

The typed contract is ``pyllmcancel/_native.pyi``. Every call that may take more than microseconds releases the GIL.

For each C++ type a ``.pxd`` mirrors its header, and a ``.pxi`` of the same name is its Python class. They are included
here, in the order in which they need each other, so that all is one extension module.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from factories cimport add_test_functions
from hang_up cimport c_has_hung_up
from llama cimport llama_print_system_info
from translate cimport python_errors

import re
import sys

from pyllmcancel import errors


cdef void hand_over(object error_class, PyObject ** place):
    # Kept for the life of the process: C++ holds the bare pointer.
    Py_INCREF(error_class)
    place[0] = <PyObject *> error_class


hand_over(errors.ModelLoadError, &python_errors().model_load)
hand_over(errors.LoadCancelled, &python_errors().load_cancelled)
hand_over(errors.ContextError, &python_errors().context)
hand_over(errors.ContextBusy, &python_errors().busy)
hand_over(errors.UsageError, &python_errors().usage)

add_test_functions(sys.modules[__name__])


def has_hung_up(int socket):
    """Whether the other end of `socket`, a file descriptor, has closed the connection, or it broke. Never waits."""
    # With the GIL held: the engine's thread asks between two steps, and would wait for the thread that took it.
    return c_has_hung_up(socket)


def kernel_features():
    """The CPU features that the kernels were compiled for, in llama.cpp's names: AVX2, AVX512_VNNI, REPACK …"""
    return frozenset(re.findall(r"(\w+) = 1\b", llama_print_system_info().decode()))


include "json_size.pxi"
include "grammar_check.pxi"
include "cancel_flag.pxi"
include "thread_policy.pxi"
include "model.pxi"
include "sampler.pxi"
include "arrays.pxi"
include "swapped_prefix.pxi"
include "step.pxi"
include "context.pxi"
include "embedder.pxi"
include "chat_template.pxi"
include "chat_parser.pxi"
