#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <string>
#include <vector>

namespace pyllmcancel {

// A device that can compute beside the CPU.
struct Device {
    std::string name;
    std::string description;
    std::string back_end;
    uint64_t total; // bytes
    uint64_t free;
    bool preferred; // among those that llama.cpp takes where none are named
    bool accelerator; // without memory of its own: llama.cpp has it help the CPU in any case
};

// Before the first call of llama.cpp or ggml. Idempotent, from any thread.
void init_back_ends();

std::vector<Device> devices();

// The names that `--override-tensor` accepts: the places where devices keep weights, including the CPU's.
std::vector<std::string> buffer_types();

// Null if there is none of that name.
ggml_backend_buffer_type_t buffer_type(const std::string & name);

// Returns whether it is a graphics processor, or several as one: none of these has ggml's abort callback.
bool is_gpu(ggml_backend_dev_t device);

} // namespace pyllmcancel
