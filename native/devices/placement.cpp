#include "devices/placement.hpp"

#include "devices/devices.hpp"
#include "platform/errors.hpp"

#include <regex>

namespace pyllmcancel {

void check_tensor_pattern(const std::string & pattern) {
    try {
        const std::regex read(pattern);
    } catch (const std::regex_error & error) {
        throw UsageError("no pattern of tensors' names is " + pattern + ": " + error.what());
    }
}

PlacementParams::PlacementParams(const Placement & placement) : placement_(placement) {
    init_back_ends();
    for (const std::string & name : placement_.devices) {
        devices_.push_back(ggml_backend_dev_by_name(name.c_str()));
        if (!devices_.back()) {
            throw UsageError("there is no device " + name);
        }
    }
    devices_.push_back(nullptr);
    if (placement_.tensor_split.size() > llama_max_devices()) {
        throw UsageError("tensor_split has more parts than llama.cpp can have devices");
    }
    tensor_split_ = placement_.tensor_split;
    tensor_split_.resize(llama_max_devices());
    for (const auto & [pattern, type] : placement_.overrides) {
        check_tensor_pattern(pattern);
        ggml_backend_buffer_type_t found = buffer_type(type);
        if (!found) {
            throw UsageError("there is no buffer type " + type);
        }
        overrides_.push_back({pattern.c_str(), found});
    }
    overrides_.push_back({nullptr, nullptr});
}

void PlacementParams::set(llama_model_params & params) {
    params.n_gpu_layers = placement_.n_gpu_layers;
    params.devices = placement_.names_devices ? devices_.data() : nullptr;
    params.split_mode = static_cast<llama_split_mode>(placement_.split_mode);
    params.tensor_split = placement_.tensor_split.empty() ? nullptr : tensor_split_.data();
    params.main_gpu = placement_.main_gpu;
    params.tensor_buft_overrides = placement_.overrides.empty() ? nullptr : overrides_.data();
}

} // namespace pyllmcancel
