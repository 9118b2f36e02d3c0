#include "model/adapters.hpp"

#include "model/tokens.hpp"
#include "platform/errors.hpp"
#include "platform/log.hpp"
#include "platform/read_string.hpp"

#include <cmath>

namespace pyllmcancel {
namespace {

// Empty where the adapter has no such value.
std::string value_of(const llama_adapter_lora * adapter, const char * key) {
    return read_string(
        [&](char * buffer, std::size_t size) { return llama_adapter_meta_val_str(adapter, key, buffer, size); });
}

std::vector<llama_token> invocation_tokens_of(const llama_adapter_lora * adapter) {
    const llama_token * tokens = llama_adapter_get_alora_invocation_tokens(adapter);
    return {tokens, tokens + llama_adapter_get_alora_n_invocation_tokens(adapter)};
}

} // namespace

void Adapters::load(llama_model * model, const std::vector<std::string> & paths) {
    for (const std::string & path : paths) {
        clear_log_errors();
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, path.c_str());
        if (!adapter) {
            throw ModelLoadError("no LoRA adapter for this model is " + path + ": " + log_errors());
        }
        adapters_.push_back(adapter);
        try {
            check_tokens(invocation_tokens_of(adapter), llama_model_get_vocab(model));
        } catch (const UsageError & error) {
            throw ModelLoadError(path + ": the adapter is activated by a token that this model lacks: " + error.what());
        }
    }
}

void Adapters::check(const AdapterScales & scales) const {
    int32_t next = 0;
    for (const auto & [number, scale] : scales) {
        if (number < next || static_cast<std::size_t>(number) >= adapters_.size()) {
            throw UsageError("adapters are named once, in ascending order, and there are " +
                             std::to_string(adapters_.size()) + " of them");
        }
        if (!std::isfinite(scale) || scale == 0.0F) {
            throw UsageError("the scale of adapter " + std::to_string(number) + " is 0, or is not finite");
        }
        next = number + 1;
    }
}

void Adapters::set(llama_context * context, const AdapterScales & scales) const {
    std::vector<llama_adapter_lora *> adapters;
    std::vector<float> factors;
    for (const auto & [number, scale] : scales) {
        adapters.push_back(adapters_[static_cast<std::size_t>(number)]);
        factors.push_back(scale);
    }
    llama_set_adapters_lora(context, adapters.data(), adapters.size(), factors.data());
}

std::vector<AdapterFacts> Adapters::facts() const {
    std::vector<AdapterFacts> found;
    for (const llama_adapter_lora * adapter : adapters_) {
        found.push_back({value_of(adapter, "adapter.lora.task_name"), value_of(adapter, "adapter.lora.prompt_prefix"),
                         invocation_tokens_of(adapter)});
    }
    return found;
}

} // namespace pyllmcancel
