#pragma once

#include "llama.h"

#include <cstdint>

namespace pyllmcancel {

// The parameters that a Context and an Embedder share.
struct CommonParams {
    uint32_t n_ctx = 4096;  // cells of all sequences together; of no meaning to a model without memory
    uint32_t n_seq_max = 4; // seq_ids are 0 … n_seq_max - 1
    uint32_t n_batch = 512; // limit of tokens in one step
    int32_t n_threads = 1;
    int32_t n_threads_batch = 1;
    // the thread counts are limits: fewer in steps beside other busy programs (thread_policy.hpp)
    bool adapt_threads = false;
    int32_t flash_attention = -1; // llama.cpp's: -1 automatic, 0 off, 1 on
    int32_t type_k = 1;           // ggml_type of the cells' keys; 1 is F16
    int32_t type_v = 1;           // and of their values
    bool kv_offload = true;       // the cells of an offloaded layer, and their attention, are on its device
    bool op_offload = true;       // a device may compute large batches with weights that the CPU keeps
    double cut_seconds = -1.0;    // see AbortGate::install
    bool abortable = true;        // false: never abort a step (for tests that show the effect)
};

// Throws ContextError for more sequences than llama.cpp can have.
void check_n_seq_max(const CommonParams & params);

// llama.cpp's parameters, of one ubatch a step: what a step that returned ok computed is true, what any other computed
// is gone, and pooling sees no further.
llama_context_params native_params(const CommonParams & params);

} // namespace pyllmcancel
