#include "devices/fit.hpp"

#include "devices/owned_context.hpp"
#include "platform/assertions.hpp"
#include "platform/errors.hpp"
#include "platform/log.hpp"

// llama.cpp's.
#include "fit.h"

#include "ggml-backend.h"

#include <algorithm>
#include <mutex>

// In the place of llama_log_set: see cmake/llama_chat.cmake.
extern "C" void pyllmcancel_keep_log(ggml_log_callback /*callback*/, void * /*user_data*/) {}

namespace pyllmcancel {
namespace {

// llama.cpp's fit keeps names in static variables.
class FitGuard {
  public:
    FitGuard() : lock_(mutex()) { clear_log_errors(); }
    FitGuard(const FitGuard &) = delete;
    FitGuard & operator=(const FitGuard &) = delete;

  private:
    static std::mutex & mutex() {
        static std::mutex one;
        return one;
    }

    std::lock_guard<std::mutex> lock_;
    AssertionsThrow throws_;
};

[[noreturn]] void refuse_fit(const std::string & path, const std::string & fallback) {
    const std::string why = log_errors();
    throw ModelLoadError(path + ": " + (why.empty() ? fallback : why));
}

std::string context_with(uint32_t n_ctx) { return "a context of " + std::to_string(n_ctx) + " cells"; }

Placement placement_of(const Placement & asked, const llama_model_params & params) {
    Placement found = asked;
    found.n_gpu_layers = params.n_gpu_layers;
    if (params.tensor_split) {
        found.tensor_split.assign(params.tensor_split, params.tensor_split + llama_max_devices());
        while (!found.tensor_split.empty() && found.tensor_split.back() <= 0.0f) {
            found.tensor_split.pop_back();
        }
    }
    for (const auto * one = params.tensor_buft_overrides; one && one->pattern; ++one) {
        found.overrides.emplace_back(one->pattern, ggml_backend_buft_name(one->buft));
    }
    return found;
}

} // namespace

std::vector<DeviceUse> memory_use(const std::string & path, const Placement & placement,
                                  const llama_context_params & context) {
    check_bookkeeping(context, context_with(context.n_ctx));
    PlacementParams params(placement);
    llama_model_params native = llama_model_default_params();
    params.set(native);
    std::vector<ggml_backend_dev_t> used;
    uint32_t n_layers = 0;
    uint32_t n_ctx_train = 0;
    uint32_t n_experts = 0;
    common_device_memory_data_vec told;
    {
        const FitGuard guard;
        try {
            told = common_get_device_memory_data(path.c_str(), &native, &context, used, n_layers, n_ctx_train,
                                                 n_experts, GGML_LOG_LEVEL_ERROR);
        } catch (const std::runtime_error & error) {
            refuse_fit(path, error.what());
        }
    }
    std::vector<DeviceUse> found;
    for (std::size_t i = 0; i < told.size(); ++i) { // the last one told is the CPU
        found.push_back({i < used.size() ? ggml_backend_dev_name(used[i]) : "CPU", static_cast<uint64_t>(told[i].total),
                         static_cast<uint64_t>(told[i].free), told[i].model, told[i].context, told[i].compute});
    }
    return found;
}

std::optional<Placement> fitted(const std::string & path, const Placement & placement,
                                const llama_context_params & context, const std::vector<uint64_t> & margins) {
    check_bookkeeping(context, context_with(context.n_ctx));
    PlacementParams params(placement);
    llama_model_params native = llama_model_default_params();
    params.set(native);
    native.n_gpu_layers = llama_model_default_params().n_gpu_layers; // open
    llama_context_params wanted = context;
    std::vector<float> split(llama_max_devices());
    std::vector<llama_model_tensor_buft_override> overrides(llama_max_tensor_buft_overrides());
    std::vector<std::size_t> kept(llama_max_devices(), margins.empty() ? 0 : margins.back());
    std::copy_n(margins.begin(), std::min(margins.size(), kept.size()), kept.begin());
    const FitGuard guard;
    switch (common_fit_params(path.c_str(), &native, &wanted, split.data(), overrides.data(), kept.data(), wanted.n_ctx,
                              nullptr, GGML_LOG_LEVEL_ERROR)) {
        case COMMON_PARAMS_FIT_STATUS_SUCCESS: return placement_of(placement, native);
        case COMMON_PARAMS_FIT_STATUS_FAILURE: return std::nullopt;
        case COMMON_PARAMS_FIT_STATUS_ERROR: break;
    }
    refuse_fit(path, "its use of memory could not be measured");
}

} // namespace pyllmcancel
