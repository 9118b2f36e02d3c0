#pragma once

#include <stdexcept>
#include <string>

namespace pyllmcancel {

// Each class here becomes one Python exception, in translate.hpp and nowhere else.

struct ModelLoadError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct LoadCancelled : std::runtime_error {
    LoadCancelled() : std::runtime_error("loading was cancelled by its progress callback") {}
};

// The context could not be made: no memory for the cells, or the model has none.
struct ContextError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A second thread entered the context while a step was running.
struct ContextBusy : std::runtime_error {
    ContextBusy() : std::runtime_error("a step is running on this context in another thread") {}
};

// The request for a sequence is invalid (unknown seq_id, no tokens, too many): nothing was changed.
struct UsageError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

} // namespace pyllmcancel
