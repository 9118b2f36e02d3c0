#pragma once

#include <cstdint>

namespace probe {

// Calls of ggml's interface of back ends so far: of all devices together, or of the processor.
struct BackendCalls {
    int64_t launches = 0;         // graphs, or parts of them, that a back end was given
    int64_t synchronizations = 0; // waits for a back end; the processor's has nothing to wait for
    int64_t writes = 0;           // of the host into buffers
    int64_t written_bytes = 0;
    int64_t reads = 0; // of the host from buffers
    int64_t read_bytes = 0;
    int64_t copies = 0; // without the host
};

// Puts functions that count before those of every back end and buffer that is made from now on: call it before a model is
// loaded. Further calls do nothing. Events are not counted: llama.cpp has none unless it keeps several copies of its
// inputs. The counts have no lock: only one thread may compute.
void count_backend_calls();

BackendCalls device_calls();
BackendCalls host_calls();

} // namespace probe
