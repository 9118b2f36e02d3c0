// The type of memory for panels, as the core sees it: it finds this class by the type's name, also where the CPU's back end is
// a library that is loaded at run time.

#pragma once

#include "traits.h"

namespace panels {

constexpr const char * TYPE_NAME = "CPU_PANELS";

class Type : public ggml::cpu::extra_buffer_type {
  public:
    // From now on the large products and the attention of graphs that the calling thread computes ask `ask`, with `self`,
    // every few tenths of a millisecond whether all threads are to leave the node before it is complete. Null: they do not ask.
    virtual void ask_in_nodes(bool (*ask)(void * self) noexcept, void * self) noexcept = 0;
};

} // namespace panels
