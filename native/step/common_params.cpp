#include "step/common_params.hpp"

#include "platform/errors.hpp"

#include <string>

namespace pyllmcancel {

void check_n_seq_max(const CommonParams & params) {
    if (params.n_seq_max < 1 || params.n_seq_max > llama_max_parallel_sequences()) {
        throw ContextError("n_seq_max must lie between 1 and " + std::to_string(llama_max_parallel_sequences()));
    }
}

llama_context_params native_params(const CommonParams & params) {
    llama_context_params native = llama_context_default_params();
    native.n_ctx = params.n_ctx;
    native.n_batch = params.n_batch;
    native.n_ubatch = params.n_batch;
    native.n_seq_max = params.n_seq_max;
    native.n_threads = params.n_threads;
    native.n_threads_batch = params.n_threads_batch;
    native.type_k = static_cast<ggml_type>(params.type_k);
    native.type_v = static_cast<ggml_type>(params.type_v);
    native.flash_attn_type = static_cast<llama_flash_attn_type>(params.flash_attention);
    native.offload_kqv = params.kv_offload;
    native.op_offload = params.op_offload;
    native.no_perf = true;
    return native;
}

} // namespace pyllmcancel
