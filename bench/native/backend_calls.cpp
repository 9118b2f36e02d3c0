#include "backend_calls.hpp"

#include "ggml-backend-impl.h"

#include <unordered_map>

namespace probe {
namespace {

// The functions that were there before. Devices and types of buffers live as long as the process.
std::unordered_map<ggml_backend_dev_t, decltype(ggml_backend_device_i::init_backend)> makes_backend;
std::unordered_map<ggml_backend_buffer_type_t, decltype(ggml_backend_buffer_type_i::alloc_buffer)> makes_buffer;
std::unordered_map<ggml_backend_dev_t, ggml_backend_i> of_backend;
std::unordered_map<ggml_backend_buffer_type_t, ggml_backend_buffer_i> of_buffer;
BackendCalls on_devices, on_host;

BackendCalls & calls(ggml_backend_t backend) {
    return ggml_backend_dev_type(backend->device) == GGML_BACKEND_DEVICE_TYPE_CPU ? on_host : on_devices;
}

BackendCalls & calls(ggml_backend_buffer_t buffer) {
    return ggml_backend_buffer_is_host(buffer) ? on_host : on_devices;
}

void count_write(BackendCalls & calls, std::size_t size) {
    ++calls.writes;
    calls.written_bytes += static_cast<int64_t>(size);
}

void count_read(BackendCalls & calls, std::size_t size) {
    ++calls.reads;
    calls.read_bytes += static_cast<int64_t>(size);
}

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    count_write(calls(buffer), size);
    of_buffer.at(buffer->buft).set_tensor(buffer, tensor, data, offset, size);
}

void get_tensor(ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    count_read(calls(buffer), size);
    of_buffer.at(buffer->buft).get_tensor(buffer, tensor, data, offset, size);
}

bool copy_tensor(ggml_backend_buffer_t buffer, const ggml_tensor * from, ggml_tensor * to) {
    const bool copied = of_buffer.at(buffer->buft).cpy_tensor(buffer, from, to);
    calls(buffer).copies += copied ? 1 : 0;
    return copied;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    ++calls(backend).launches;
    return of_backend.at(backend->device).graph_compute(backend, graph);
}

void synchronize(ggml_backend_t backend) {
    ++calls(backend).synchronizations;
    of_backend.at(backend->device).synchronize(backend);
}

void set_tensor_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    count_write(calls(backend), size);
    of_backend.at(backend->device).set_tensor_async(backend, tensor, data, offset, size);
}

void get_tensor_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    count_read(calls(backend), size);
    of_backend.at(backend->device).get_tensor_async(backend, tensor, data, offset, size);
}

bool copy_tensor_async(ggml_backend_t source, ggml_backend_t target, const ggml_tensor * from, ggml_tensor * to) {
    const bool copied = of_backend.at(target->device).cpy_tensor_async(source, target, from, to);
    calls(target).copies += copied ? 1 : 0;
    return copied;
}

// A function that a back end lacks stays absent: ggml asks for it.
template <typename Function> void replace(Function *& there, Function & counts) {
    if (there != nullptr) {
        there = counts;
    }
}

ggml_backend_t make_backend(ggml_backend_dev_t device, const char * params) {
    const ggml_backend_t backend = makes_backend.at(device)(device, params);
    if (backend != nullptr) {
        of_backend[device] = backend->iface;
        replace(backend->iface.graph_compute, compute);
        replace(backend->iface.synchronize, synchronize);
        replace(backend->iface.set_tensor_async, set_tensor_async);
        replace(backend->iface.get_tensor_async, get_tensor_async);
        replace(backend->iface.cpy_tensor_async, copy_tensor_async);
    }
    return backend;
}

ggml_backend_buffer_t make_buffer(ggml_backend_buffer_type_t type, size_t size) {
    const ggml_backend_buffer_t buffer = makes_buffer.at(type)(type, size);
    // A buffer in pinned memory may be of the processor's type in the end.
    if (buffer != nullptr && buffer->iface.set_tensor != set_tensor) {
        of_buffer[buffer->buft] = buffer->iface;
        replace(buffer->iface.set_tensor, set_tensor);
        replace(buffer->iface.get_tensor, get_tensor);
        replace(buffer->iface.cpy_tensor, copy_tensor);
    }
    return buffer;
}

void count_in(ggml_backend_buffer_type_t type) {
    if (type != nullptr && type->iface.alloc_buffer != make_buffer) {
        makes_buffer[type] = type->iface.alloc_buffer;
        type->iface.alloc_buffer = make_buffer;
    }
}

} // namespace

void count_backend_calls() {
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (device->iface.init_backend != make_backend) {
            makes_backend[device] = device->iface.init_backend;
            device->iface.init_backend = make_backend;
            count_in(ggml_backend_dev_buffer_type(device));
            count_in(ggml_backend_dev_host_buffer_type(device));
        }
    }
}

BackendCalls device_calls() { return on_devices; }
BackendCalls host_calls() { return on_host; }

} // namespace probe
