#pragma once

#include <string>

struct gguf_context;

namespace pyllmcancel {

// Reads the keys of a model file, and throws ModelLoadError, which names the key, for values that llama.cpp would misread,
// or over which it would end the process, now or at the first step. Files that llama.cpp itself refuses with a message are
// left to it, such as those that are not GGUF.
void check_gguf(const std::string & path, bool require_vocabulary);

// As check_gguf, for keys that were read already.
void check_gguf(const gguf_context * file, bool require_vocabulary);

} // namespace pyllmcancel
