#pragma once

// The calls of llama.cpp whose failure the core handles. In builds for tests (PYLLMCANCEL_FAULTS) each can be made to fail;
// in all others they are the calls and nothing else.

#include "llama.h"

#include <cstddef>
#include <cstdint>

#ifdef PYLLMCANCEL_FAULTS
#include "platform/faults.hpp"
// Returns `result` instead of calling, if a test wants that.
#define PYLLMCANCEL_FAIL(call, result)                                                                                 \
    if (::pyllmcancel::faults::due(::pyllmcancel::faults::Call::call)) {                                               \
        return result;                                                                                                 \
    }
#else
#define PYLLMCANCEL_FAIL(call, result)
#endif

namespace pyllmcancel::calls {

inline llama_model * load_model(const char * path, const llama_model_params & params) {
    PYLLMCANCEL_FAIL(load_model, nullptr)
    return llama_model_load_from_file(path, params);
}

inline llama_context * init_context(llama_model * model, const llama_context_params & params) {
    PYLLMCANCEL_FAIL(init_context, nullptr)
    return llama_init_from_model(model, params);
}

#ifdef PYLLMCANCEL_FAULTS
// A step: its call may also fail after it has done its work.
template <typename Compute> int32_t fail_or(faults::Call call, Compute compute) {
    const auto fault = faults::due(call);
    if (!fault) {
        return compute();
    }
    if (fault->after) {
        compute();
    }
    return fault->code;
}
#endif

inline int32_t decode(llama_context * context, llama_batch batch) {
#ifdef PYLLMCANCEL_FAULTS
    return fail_or(faults::Call::decode, [&] { return llama_decode(context, batch); });
#else
    return llama_decode(context, batch);
#endif
}

inline int32_t encode(llama_context * context, llama_batch batch) {
#ifdef PYLLMCANCEL_FAULTS
    return fail_or(faults::Call::encode, [&] { return llama_encode(context, batch); });
#else
    return llama_encode(context, batch);
#endif
}

// Whole sequences, and none but they, can always be removed.
inline bool remove_cells(llama_memory_t memory, llama_seq_id seq, llama_pos begin, llama_pos end) {
    if (begin > 0) {
        PYLLMCANCEL_FAIL(remove_cells, false)
    }
    return llama_memory_seq_rm(memory, seq, begin, end);
}

inline std::size_t state_size(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags) {
    PYLLMCANCEL_FAIL(state_size, 0)
    return llama_state_seq_get_size_ext(context, seq, flags);
}

inline std::size_t state_get(llama_context * context, uint8_t * state, std::size_t size, llama_seq_id seq,
                             llama_state_seq_flags flags) {
    PYLLMCANCEL_FAIL(state_get, 0)
    return llama_state_seq_get_data_ext(context, state, size, seq, flags);
}

inline std::size_t state_set(llama_context * context, const uint8_t * state, std::size_t size, llama_seq_id seq,
                             llama_state_seq_flags flags) {
    PYLLMCANCEL_FAIL(state_set, 0)
    return llama_state_seq_set_data_ext(context, state, size, seq, flags);
}

// Fail by std::bad_alloc only.
inline void before_tokenizing() { PYLLMCANCEL_FAIL(tokenize, ) }
inline void before_sampling() { PYLLMCANCEL_FAIL(sample, ) }

} // namespace pyllmcancel::calls
