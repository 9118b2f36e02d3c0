#pragma once

#include "llama.h"

#include <vector>

namespace pyllmcancel {

// Throws UsageError for a token that the vocabulary does not have.
void check_tokens(const std::vector<llama_token> & tokens, const llama_vocab * vocab);

} // namespace pyllmcancel
