#include "devices/cpu_backend.hpp"

#include "ggml/panel_type.hpp"

#include "ggml-backend-impl.h"

#include <string_view>

#ifndef PYLLMCANCEL_MODULES

#include "ggml-cpu.h"

namespace pyllmcancel {

void set_backend_folder(const std::string & /*folder*/) {}
void load_backends() {}
std::string cpu_backend_file() { return {}; }

ggml_threadpool * new_threadpool(ggml_threadpool_params & params) { return ggml_threadpool_new(&params); }
void free_threadpool(ggml_threadpool * pool) noexcept { ggml_threadpool_free(pool); }
void pause_threadpool(ggml_threadpool * pool) noexcept { ggml_threadpool_pause(pool); }

} // namespace pyllmcancel

#else

#include "platform/errors.hpp"
#include "platform/log.hpp"
#include "platform/platform.hpp"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdlib>
#include <mutex>
#include <string>

namespace pyllmcancel {
namespace {

// Written while the module is imported, read afterwards.
std::string & folder() {
    static std::string path;
    return path;
}

// The variable is obeyed in native/ggml/variant_score.cpp.
std::string chosen_by_name() {
    const char * const name = std::getenv("PYLLMCANCEL_CPU_VARIANT");
    return name == nullptr || *name == '\0' ? "" : std::string(": PYLLMCANCEL_CPU_VARIANT allows only ") + name;
}

ggml_backend_dev_t device() {
    load_backends();
    ggml_backend_dev_t found = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (found == nullptr) {
        throw ContextError("no back end for this CPU is in " + folder() + chosen_by_name());
    }
    return found;
}

template <typename Function> Function * function(const char * name) {
    void * const found = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device()), name);
    if (found == nullptr) {
        throw ContextError(std::string("the CPU's back end has no ") + name);
    }
    return reinterpret_cast<Function *>(found);
}

using NewPool = ggml_threadpool *(ggml_threadpool_params *);
using FreePool = void(ggml_threadpool *);
using UsePool = void(ggml_backend_t, ggml_threadpool *);

// No back end has a name for ggml_threadpool_pause(); but one that is given another pool pauses the former.
class Pauser {
  public:
    void pause(ggml_threadpool * pool) {
        const std::lock_guard<std::mutex> guard(mutex_);
        use_(backend_.get(), pool);
        use_(backend_.get(), nullptr);
    }

  private:
    std::mutex mutex_;
    UsePool * use_ = function<UsePool>("ggml_backend_cpu_set_threadpool");
    ggml_backend_ptr backend_{ggml_backend_dev_init(device(), nullptr)};
};

// Never destroyed: contexts may outlive the static objects.
Pauser & pauser() {
    static Pauser & made = *new Pauser();
    return made;
}

} // namespace

void set_backend_folder(const std::string & path) { folder() = path; }

void load_backends() {
    static const bool is_done = [] { // not by std::call_once: see devices.cpp
        install_log();
        ggml_backend_load_all_from_path(folder().c_str());
        return true;
    }();
    static_cast<void>(is_done);
}

std::string cpu_backend_file() { return platform::file_of(ggml_backend_dev_backend_reg(device())); }

ggml_threadpool * new_threadpool(ggml_threadpool_params & params) {
    static_cast<void>(pauser()); // it throws here, if at all
    static NewPool * const make = function<NewPool>("ggml_threadpool_new");
    return make(&params);
}

void free_threadpool(ggml_threadpool * pool) noexcept {
    static FreePool * const free = function<FreePool>("ggml_threadpool_free");
    free(pool);
}

void pause_threadpool(ggml_threadpool * pool) noexcept { pauser().pause(pool); }

} // namespace pyllmcancel

#endif

namespace pyllmcancel {
namespace {

bool is_of_panels(ggml_backend_buffer_type_t type) {
    return std::string_view(ggml_backend_buft_name(type)) == panels::TYPE_NAME;
}

// Null on processors for which there are no panels.
panels::Type * find_panels() {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const auto types = device == nullptr
                           ? nullptr
                           : reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
                                 ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    for (auto * type = types == nullptr ? nullptr : types(device); type != nullptr && *type != nullptr; ++type) {
        if (is_of_panels(*type)) {
            return static_cast<panels::Type *>(static_cast<ggml::cpu::extra_buffer_type *>((*type)->context));
        }
    }
    return nullptr;
}

void ask_in_nodes(bool (*ask)(void * self) noexcept, void * self) noexcept {
    static panels::Type * const type = find_panels();
    if (type != nullptr) {
        type->ask_in_nodes(ask, self);
    }
}

} // namespace

bool has_panels() { return find_panels() != nullptr; }

bool is_in_panels(const ggml_tensor & tensor) { return tensor.buffer && is_of_panels(tensor.buffer->buft); }

AskInNodes::AskInNodes(bool (*ask)(void * self) noexcept, void * self) noexcept { ask_in_nodes(ask, self); }

AskInNodes::~AskInNodes() { ask_in_nodes(nullptr, nullptr); }

} // namespace pyllmcancel
