#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>

// The model's own heads: layers behind the last one that read its hidden state and guess the token after the next
// (multi-token prediction; llama.cpp says NextN). They compute in a context of their own.
//
// Hazard: the hidden states come through llama.cpp's src/llama-ext.h, a staging header in which breaking changes are
// allowed. heads.cpp is the only file that includes it. Whoever moves the pin reads again there what is said of masks.
namespace pyllmcancel::heads {

// The number of heads that a model was loaded with. 0 if its graph of them is unknown here, or the file has no weights
// of them, or they were not loaded.
int32_t count(const llama_model * model);

// Has a context compute the heads instead of the model.
void choose(llama_context_params & params);

// Has a context keep the hidden state of every row of a step: called once, before its first step.
void keep_states(llama_context * context);

// Has a context of heads keep its own, which go with the token that it guesses. Of some architectures the rows are those
// of a step's outputs, of others the first ones: they are the same only if each row of the step is an output.
void keep_states_of_outputs(llama_context * context);

// The state of a row of the last step, which returned ok; null if there is none. Valid until the next step.
const float * state(llama_context * context, int32_t row);

// The number of values of a state.
std::size_t width(const llama_model * model);

} // namespace pyllmcancel::heads
