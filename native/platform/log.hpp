#pragma once

#include "ggml.h"

#include <string>

namespace pyllmcancel {

// llama.cpp has one log callback for the whole process. Ours is installed once and keeps, per thread, the error lines
// of the call in progress, so that an exception can quote them. Everything goes to stderr when the environment variable
// PYLLMCANCEL_LLAMA_LOG is set, and nowhere otherwise: in whole lines like those of pyllmcancel/cli/logs.py, as text
// or, where PYLLMCANCEL_LOG_FORMAT is "json", as JSON. Python's logging is not used: llama.cpp logs in the middle of a
// computation, which must not wait for the GIL, and its last lines before an abort are the important ones.
void install_log();

// For parts of llama.cpp that have a callback of their own.
ggml_log_callback log_callback();

// Returns whether that environment variable is set.
bool logs_to_stderr();

// Writes there, if it is set.
void log_to_stderr(ggml_log_level level, const char * text);

// Forgets the calling thread's error lines, before a call whose errors are wanted.
void clear_log_errors();

// The calling thread's error lines since clear_log_errors(), trimmed and joined with "; ".
std::string log_errors();

} // namespace pyllmcancel
