#include "devices/devices.hpp"

#include "devices/cpu_backend.hpp"
#include "platform/assertions.hpp"
#include "platform/log.hpp"

#include "llama.h"

#include <algorithm>
#include <string_view>

namespace pyllmcancel {
namespace {

std::vector<ggml_backend_dev_t> all() {
    init_back_ends();
    std::vector<ggml_backend_dev_t> found;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        found.push_back(ggml_backend_dev_get(i));
    }
    return found;
}

// If two back ends know a device, the first one is used, as in llama.cpp.
bool is_known(const std::vector<ggml_backend_dev_t> & taken, ggml_backend_dev_t device) {
    ggml_backend_dev_props props{};
    ggml_backend_dev_get_props(device, &props);
    return std::any_of(taken.begin(), taken.end(), [&](ggml_backend_dev_t other) {
        ggml_backend_dev_props others{};
        ggml_backend_dev_get_props(other, &others);
        return props.device_id && others.device_id && std::string_view(props.device_id) == others.device_id;
    });
}

// llama.cpp's choice: the GPUs; if there are none, the integrated ones of one back end.
std::vector<ggml_backend_dev_t> preferred_of(const std::vector<ggml_backend_dev_t> & found) {
    std::vector<ggml_backend_dev_t> gpus;
    std::vector<ggml_backend_dev_t> integrated;
    for (ggml_backend_dev_t device : found) {
        const auto type = ggml_backend_dev_type(device);
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU && !is_known(gpus, device)) {
            gpus.push_back(device);
        }
        if (type == GGML_BACKEND_DEVICE_TYPE_IGPU &&
            (integrated.empty() ||
             ggml_backend_dev_backend_reg(device) == ggml_backend_dev_backend_reg(integrated.back()))) {
            integrated.push_back(device);
        }
    }
    return gpus.empty() ? integrated : gpus;
}

} // namespace

void init_back_ends() {
    // Not by std::call_once: a back end may throw while it is loaded. See native/chat/chat_template.cpp.
    static const bool is_done = [] {
        install_log();
        install_assertions();
        load_backends();
        llama_backend_init();
        return true;
    }();
    static_cast<void>(is_done);
}

std::vector<Device> devices() {
    const std::vector<ggml_backend_dev_t> found = all();
    const std::vector<ggml_backend_dev_t> preferred = preferred_of(found);
    std::vector<Device> told;
    for (ggml_backend_dev_t device : found) {
        if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
            continue;
        }
        std::size_t free = 0;
        std::size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        const bool is_preferred = std::find(preferred.begin(), preferred.end(), device) != preferred.end();
        told.push_back({ggml_backend_dev_name(device), ggml_backend_dev_description(device),
                        ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), total, free, is_preferred,
                        ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_ACCEL});
    }
    return told;
}

std::vector<std::string> buffer_types() {
    std::vector<std::string> names;
    for (ggml_backend_dev_t device : all()) {
        if (ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device)) {
            const std::string name = ggml_backend_buft_name(type);
            if (std::find(names.begin(), names.end(), name) == names.end()) { // accelerators share the CPU's
                names.push_back(name);
            }
        }
    }
    return names;
}

ggml_backend_buffer_type_t buffer_type(const std::string & name) {
    for (ggml_backend_dev_t device : all()) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
        if (type && name == ggml_backend_buft_name(type)) {
            return type;
        }
    }
    return nullptr;
}

bool is_gpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU ||
           type == GGML_BACKEND_DEVICE_TYPE_META;
}

} // namespace pyllmcancel
