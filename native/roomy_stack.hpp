#pragma once

#include <cstddef>
#include <functional>

namespace pyllmcancel {

// Runs `work` in a thread of its own with so large a stack, and waits for it; passes on what it throws. UsageError if there
// is no memory for that. Pages of the stack that are not used cost nothing.
void on_stack_of(std::size_t bytes, const std::function<void()> & work);

} // namespace pyllmcancel
