// Leaving a node before it is complete, since its step is to be aborted. Only the thread that computes the graph asks; it
// takes all work that is left, so that no other thread of the pool finds any.

#pragma once

#include "ggml-cpu-impl.h"

namespace leaving {

// See panel_type.hpp.
void ask_in_nodes(bool (*ask)(void * self) noexcept, void * self) noexcept;

// Returns whether the calling thread is to leave its node. What the node has computed is never looked at.
bool is_to_leave() noexcept;

// Takes all units of work that the pool's threads have not taken.
void take_all(ggml_threadpool * pool);

} // namespace leaving
