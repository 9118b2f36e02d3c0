// Flash attention of the CPU's back end over F16 or F32 cells. It takes the place of ggml's (cmake/llama_cpp.cmake).
//
// ggml has three kernels, and the rows of the graph, the cells in use and the threads choose one. They round differently,
// so that an answer would depend on its company, on how its prompt was cut into steps, and on the load of the machine.
// Here a row has one arithmetic, except for few rows over scattered unified cells, which are ggml's. It sees nothing but its
// own query, and the cells in the order in which they lie:
//
//   - a score is a chain of fused multiply-adds over the head's elements, as in ggml's kernel for prompts;
//   - cells are taken in tiles of 64, and tiles in blocks of 512, both counted from the first cell;
//   - a block has a maximum, a sum and a weighted sum of values of its own, in 32 bits;
//   - blocks are merged in their order.
//
// How many rows, heads and blocks a thread takes at once decides about speed only. Heads that share keys and values are
// computed together, so that cells are converted once for all of them.

#include "ggml-cpu-impl.h"
#include "ggml.h"
#include "ops.h"
#include "simd-mappings.h"

// ggml's own, renamed: for other types of cells, and for processors whose vectors have no fixed length.
extern "C" void ggml_own_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);

#if defined(GGML_SIMD) && !defined(__ARM_FEATURE_SVE) && !defined(__riscv_v_intrinsic)

#include "ggml/attention_call.hpp"

#include <cstdint>

namespace {

// Returns whether cells that a row does not see lie between those that it sees, as with unified cells that several
// sequences use.
bool is_scattered(const ggml_fp16_t * mask, int64_t n_cells) {
    int64_t n_visible = 0;
    for (int64_t i = 0; i < n_cells; ++i) {
        n_visible += mask[i] != MASKED;
    }
    int64_t first = 0;
    while (first < n_cells && mask[first] == MASKED) {
        ++first;
    }
    int64_t end = n_cells;
    while (end > first && mask[end - 1] == MASKED) {
        --end;
    }
    return end - first > n_visible;
}

// A few rows of which each sees some cells here and there: ggml's kernel skips the others one by one, ours tile by tile.
bool sees_here_and_there(const ggml_tensor * dst) {
    const ggml_tensor * mask = dst->src[3];
    const int64_t n_queries = dst->src[0]->ne[1];
    if (mask == nullptr || dst->src[0]->ne[3] > 1 || n_queries >= TILE) {
        return false;
    }
    for (int64_t row = 0; row < n_queries; ++row) {
        const char * at = static_cast<const char *>(mask->data) + static_cast<std::size_t>(row) * mask->nb[1];
        if (is_scattered(reinterpret_cast<const ggml_fp16_t *>(at), dst->src[1]->ne[1])) {
            return true;
        }
    }
    return false;
}

bool is_ours(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_type k = dst->src[1]->type;
    const ggml_type v = dst->src[2]->type;
    const bool wide = k == v && (k == GGML_TYPE_F16 || k == GGML_TYPE_F32);
    return !params->use_ref && wide && dst->src[0]->type == GGML_TYPE_F32 && dst->type == GGML_TYPE_F32 &&
           dst->nb[1] == static_cast<std::size_t>(dst->ne[0]) * sizeof(float) && Attention::has_room(params, dst) &&
           !sees_here_and_there(dst);
}

} // namespace

extern "C" void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    if (is_ours(params, dst)) {
        Attention(params, dst).run();
    } else {
        ggml_own_flash_attn_ext(params, dst);
    }
}

#else

extern "C" void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    ggml_own_flash_attn_ext(params, dst);
}

#endif
