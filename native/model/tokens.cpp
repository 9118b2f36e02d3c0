#include "model/tokens.hpp"

#include "platform/errors.hpp"

#include <string>

namespace pyllmcancel {

void check_tokens(const std::vector<llama_token> & tokens, const llama_vocab * vocab) {
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    for (const llama_token token : tokens) {
        if (token < 0 || token >= n_vocab) {
            throw UsageError("token " + std::to_string(token) + " is not in the vocabulary");
        }
    }
}

} // namespace pyllmcancel
