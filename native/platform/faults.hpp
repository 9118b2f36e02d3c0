#pragma once

#include <cstdint>
#include <optional>

// Failures on demand, for tests: only in builds with PYLLMCANCEL_FAULTS, never in a release.

struct _object; // Python's PyObject

namespace pyllmcancel::faults {

// The calls whose failure the core handles.
enum class Call {
    load_model,
    init_context,
    start_threads,
    tokenize,
    decode,
    encode,
    sample,
    remove_cells,
    state_size,
    state_get,
    state_set,
    pages,
    count
};

struct Fault {
    int32_t code; // what the call returns, where its failures have codes
    bool after;   // do the work first, then say that it failed
};

// Decides what the call that begins now does instead, if it is the one that fails. Throws if that is its failure, or
// fails an assertion of ggml.
std::optional<Fault> due(Call call);

// Adds set_fault() and clear_fault() to the Python module; -1 with an exception set if that is impossible.
int add_to(_object * module);

} // namespace pyllmcancel::faults
