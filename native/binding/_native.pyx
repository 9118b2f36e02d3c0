# cython: freethreading_compatible = False
"""llama.cpp as pyllmcancel sees it. Marshalling only: concurrency lives in C++, policy in Python.

The typed contract is ``pyllmcancel/_native.pyi``. Every call that may take more than microseconds releases the GIL.

For each C++ type a ``.pxd`` mirrors its header, and a ``.pxi`` of the same name is its Python class. They are included
here, in the order in which they need each other, so that all is one extension module.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from cpu_backend cimport cpu_backend_file, load_backends, set_backend_folder
from factories cimport add_test_functions
from hang_up cimport c_has_hung_up
from llama cimport llama_print_system_info
from translate cimport python_errors

import os
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

set_backend_folder(os.fsencode(os.path.join(os.path.dirname(__file__), "backends")))
add_test_functions(sys.modules[__name__])


def has_hung_up(int socket):
    """Return whether the other end of `socket`, a file descriptor, has closed, or the connection broke. Never waits."""
    # With the GIL held: the engine's thread asks between two steps, and would wait for the thread that took it.
    return c_has_hung_up(socket)


def kernel_features():
    """Return the CPU features that the kernels were compiled for, in llama.cpp's names: AVX2, AVX512_VNNI, REPACK …"""
    load_backends()
    return frozenset(re.findall(r"(\w+) = 1\b", llama_print_system_info().decode()))


def cpu_variant():
    """Return the CPU's back end for this machine: ``zen4``, ``haswell`` …; None if it is linked in."""
    name = os.path.basename(os.fsdecode(cpu_backend_file()))
    return name.rpartition("ggml-cpu-")[2].partition(".")[0] or None


include "json_size.pxi"
include "grammar_check.pxi"
include "cancel_flag.pxi"
include "last_words.pxi"
include "thread_policy.pxi"
include "placement.pxi"
include "model.pxi"
include "sampler.pxi"
include "arrays.pxi"
include "swapped_prefix.pxi"
include "media.pxi"
include "step.pxi"
include "context.pxi"
include "embedder.pxi"
include "fit.pxi"
include "chat_template.pxi"
include "chat_parser.pxi"
