# The memory of each device that a model and its context would take.

from libc.stdint cimport uint64_t
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from context cimport ContextParams
from embedder cimport EmbedderParams
from fit cimport CppDeviceUse, c_fitted, c_memory_use, context_llama_params, embedder_llama_params
from llama cimport llama_context_params
from placement cimport CppPlacement
from step cimport CommonParams

import os
from dataclasses import replace

from pyllmcancel.placement import DeviceUse


cdef void set_memory(CommonParams & params, dict options) except *:
    # Threads take no memory of a device.
    set_common(params, options["n_ctx"], options["n_seq_max"], options["n_batch"], 1, None, False,
               options.get("kv_offload", True), options.get("op_offload", True), options.get("flash_attention", -1),
               options.get("type_k", 1), options.get("type_v", 1), None, True)


cdef llama_context_params context_of(dict options) except *:
    # A Context's options; an Embedder's, if there is a `pooling` among them.
    cdef ContextParams params
    cdef EmbedderParams embedder_params
    if "pooling" in options:
        set_memory(embedder_params, options)
        embedder_params.pooling = options["pooling"]
        return embedder_llama_params(embedder_params)
    set_memory(params, options)
    params.kv_unified = options.get("kv_unified", True)
    params.n_extra_outputs = _MOST_EXTRA_OUTPUTS
    return context_llama_params(params)


def memory_use(path, placement, with_host=False, **context):
    cdef string c_path = os.fsencode(path)
    cdef CppPlacement c_placement = placement_of(placement)
    cdef llama_context_params c_context = context_of(context)
    cdef vector[CppDeviceUse] found
    with nogil:
        found = c_memory_use(c_path, c_placement, c_context)
    uses = [DeviceUse(decoded(one.name), one.total, one.free, one.weights, one.cells, one.buffers) for one in found]
    return uses if with_host else uses[:-1]


def fitted(path, placement, margins, **context):
    cdef string c_path = os.fsencode(path)
    cdef CppPlacement c_placement = placement_of(placement)
    cdef llama_context_params c_context = context_of(context)
    cdef vector[uint64_t] c_margins = margins
    cdef optional[CppPlacement] found
    with nogil:
        found = c_fitted(c_path, c_placement, c_context, c_margins)
    if not found.has_value():
        return None
    c_placement = found.value()
    return replace(
        placement,
        n_gpu_layers="all" if c_placement.n_gpu_layers < 0 else c_placement.n_gpu_layers,
        tensor_split=tuple(c_placement.tensor_split),
        override_tensors=tuple([(decoded(one.first), decoded(one.second)) for one in c_placement.overrides]),
    )
