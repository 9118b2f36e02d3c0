#pragma once

#include <string>

namespace pyllmcancel {

// Refuses, with UsageError, a GBNF over which llama.cpp's parser would end the process instead of failing: nested deeper
// than its recursion can bear, repeated from more times to fewer, or as large as no grammar is.
void check_grammar(const std::string & grammar);

} // namespace pyllmcancel
