#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pyllmcancel {

// The LoRA adapters that compute a token, by their numbers, which ascend, and their scales, none of which is 0.
using AdapterScales = std::vector<std::pair<int32_t, float>>;

// A LoRA adapter, as its file describes it.
struct AdapterFacts {
    std::string task_name;
    std::string prompt_prefix;
    std::vector<llama_token> invocation_tokens; // not empty: an activated LoRA, which computes from these tokens on
};

// The LoRA adapters of one loaded model, which owns them. Immutable once loaded.
class Adapters {
  public:
    // Throws ModelLoadError.
    void load(llama_model * model, const std::vector<std::string> & paths);

    // Throws UsageError unless `scales` are as AdapterScales wants them, of adapters that are loaded.
    void check(const AdapterScales & scales) const;

    // Makes a context of the model compute with these adapters, and no others, from its next step on.
    void set(llama_context * context, const AdapterScales & scales) const;

    std::vector<AdapterFacts> facts() const;

    bool empty() const noexcept { return adapters_.empty(); }

  private:
    std::vector<llama_adapter_lora *> adapters_;
};

} // namespace pyllmcancel
