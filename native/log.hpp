#pragma once

#include <string>

namespace pyllmcancel {

// llama.cpp has one log callback for the whole process. Ours is installed once and keeps, per thread, the error lines
// of the call in progress, so that an exception can quote them. Everything else goes to stderr when the environment
// variable PYLLMCANCEL_LLAMA_LOG is set, and nowhere otherwise.
void install_log();

// Forget the calling thread's error lines, before a call whose errors are wanted.
void clear_log_errors();

// The calling thread's error lines since clear_log_errors(), trimmed and joined with "; ".
std::string log_errors();

} // namespace pyllmcancel
