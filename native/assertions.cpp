#include "assertions.hpp"

#include "ggml.h"

#include <cstdio>
#include <stdexcept>

namespace pyllmcancel {
namespace {

// How many AssertionsThrow live on this thread; written by it alone.
thread_local int depth = 0;

// Called by ggml_abort, which is C: ggml's C files are compiled with -fexceptions, so that this may leave through them.
void on_failure(const char * message) {
    if (depth > 0) {
        throw std::runtime_error(message);
    }
    std::fprintf(stderr, "%s\n", message);
}

} // namespace

void install_assertions() { ggml_set_abort_callback(on_failure); }

AssertionsThrow::AssertionsThrow() noexcept { ++depth; }

AssertionsThrow::~AssertionsThrow() { --depth; }

} // namespace pyllmcancel
