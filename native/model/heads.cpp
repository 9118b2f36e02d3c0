#include "model/heads.hpp"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace pyllmcancel::heads {
namespace {

// Those with a graph of heads, a memory of attention, and a hidden state of n_embd values. For any other architecture
// llama.cpp would compute the model's own graph again, with the wrong cells.
constexpr std::array<std::string_view, 8> ARCHITECTURES = {"cohere2moe", "deepseek2", "deepseek32", "glm-dsa",
                                                           "glm4moe",    "hy_v3",     "mimo2",      "step35"};

// llama.cpp also loads files that name heads and lack their weights.
bool has_weights(const llama_model * model) {
    const std::string name = "blk." + std::to_string(llama_model_n_layer(model)) + ".nextn.eh_proj.weight";
    const auto & tensors = model->tensors_by_name;
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto & one) { return one.first == name; });
}

} // namespace

int32_t count(const llama_model * model) {
    const bool known = std::find(ARCHITECTURES.begin(), ARCHITECTURES.end(), model->arch_name()) != ARCHITECTURES.end();
    return known && has_weights(model) ? llama_model_n_layer_nextn(model) : 0;
}

void choose(llama_context_params & params) { params.ctx_type = LLAMA_CONTEXT_TYPE_MTP; }

void keep_states(llama_context * context) { llama_set_embeddings_nextn(context, true, /* masked */ false); }

void keep_states_of_outputs(llama_context * context) { llama_set_embeddings_nextn(context, true, /* masked */ true); }

// llama_get_embeddings_nextn_ith() waits for the device again, for each row.
const float * state(llama_context * context, int32_t row) { return context->get_embeddings_nextn_ith(row); }

std::size_t width(const llama_model * model) { return static_cast<std::size_t>(llama_model_n_embd_out(model)); }

} // namespace pyllmcancel::heads
