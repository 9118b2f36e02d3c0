#pragma once

#include "devices/placement.hpp"

#include "llama.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pyllmcancel {

// The memory of one device that a model and its context take, in bytes.
struct DeviceUse {
    std::string name;
    uint64_t total;
    uint64_t free;
    uint64_t weights;
    uint64_t cells;
    uint64_t buffers;
};

// llama.cpp loads the file without its tensors, and makes the context without memory. Throws ModelLoadError,
// and ContextError as OwnedContext does.
std::vector<DeviceUse> memory_use(const std::string & path, const Placement & placement,
                                  const llama_context_params & context);

// Returns `placement`, which must leave layers, shares and overrides open, so that each device keeps its part of
// `margins` (bytes) free: llama.cpp's common/fit. Empty if there is none. Throws as memory_use().
std::optional<Placement> fitted(const std::string & path, const Placement & placement,
                                const llama_context_params & context, const std::vector<uint64_t> & margins);

} // namespace pyllmcancel
