#include "log.hpp"

#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace pyllmcancel {
namespace {

constexpr std::size_t kept_bytes = 2000;

thread_local std::string errors;

bool to_stderr() {
    static const bool wanted = std::getenv("PYLLMCANCEL_LLAMA_LOG") != nullptr;
    return wanted;
}

void keep(const char * text) {
    if (errors.size() < kept_bytes) {
        errors += text;
    }
}

void on_log(ggml_log_level level, const char * text, void * /*user_data*/) {
    // A continuation has no level of its own; it is kept with the error that it goes on from, if there is one.
    if (level == GGML_LOG_LEVEL_ERROR || (level == GGML_LOG_LEVEL_CONT && !errors.empty())) {
        keep(text);
    }
    if (to_stderr()) {
        std::fputs(text, stderr);
    }
}

} // namespace

void install_log() { llama_log_set(on_log, nullptr); }

void clear_log_errors() { errors.clear(); }

std::string log_errors() {
    std::string joined;
    std::istringstream lines(errors);
    for (std::string line; std::getline(lines, line);) {
        if (line.find_first_not_of(" \t") != std::string::npos) {
            joined += (joined.empty() ? "" : "; ") + line;
        }
    }
    return joined;
}

} // namespace pyllmcancel
