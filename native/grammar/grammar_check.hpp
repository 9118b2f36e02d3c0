#pragma once

#include <string>

namespace pyllmcancel {

// Throws UsageError for a GBNF over which llama.cpp's parser would end the process: nested too deeply for its recursion,
// repeated from more times to fewer, or too large.
void check_grammar(const std::string & grammar);

} // namespace pyllmcancel
