#include "platform/assertions.hpp"

#include "ggml.h"

#include <atomic>
#include <cstdio>
#include <stdexcept>

namespace pyllmcancel {
namespace {

// How many AssertionsThrow live on this thread; written by it alone.
thread_local int depth = 0;

std::atomic<int> n_steps{0};    // running, of all contexts
std::atomic<bool> said{false};  // several threads may fail at once
void (*last_words)(const char *) = nullptr; // written while the module is imported

// Called by ggml_abort, which is C: ggml's C files are compiled with -fexceptions, so that this may leave through them.
void on_failure(const char * message) {
    if (depth > 0) {
        throw std::runtime_error(message);
    }
    std::fprintf(stderr, "%s\n", message);
    if (n_steps > 0 && !said.exchange(true) && last_words) {
        last_words(message);
    }
}

} // namespace

void install_assertions() { ggml_set_abort_callback(on_failure); }

void set_last_words(void (*say)(const char * message)) { last_words = say; }

StepsRun::StepsRun() noexcept { ++n_steps; }

StepsRun::~StepsRun() { --n_steps; }

AssertionsThrow::AssertionsThrow() noexcept { ++depth; }

AssertionsThrow::~AssertionsThrow() { --depth; }

} // namespace pyllmcancel
