// The type of memory for panels, as the core sees it: it finds this class by the type's name, also where the CPU's back end is
// a library that is loaded at run time.

#pragma once

#include "traits.h"

namespace panels {

constexpr const char * TYPE_NAME = "CPU_PANELS";

class Type : public ggml::cpu::extra_buffer_type {
  public:
    // From now on the calling thread asks `ask`, with `self`, whether to leave the node that it computes. Large products and
    // attention ask every few tenths of a millisecond, and all threads leave together. Null: they do not ask.
    virtual void ask_in_nodes(bool (*ask)(void * self) noexcept, void * self) noexcept = 0;
};

} // namespace panels
