#pragma once

#include <cstddef>
#include <functional>

namespace pyllmcancel {

// Runs `work` in a thread of its own with a stack of `bytes`, and waits for it; rethrows what it throws. UsageError if
// there is no memory for the stack. Pages of it that are not used cost nothing.
void run_on_stack(std::size_t bytes, const std::function<void()> & work);

} // namespace pyllmcancel
