#pragma once

#include "abort_timing.hpp"
#include "model/model.hpp"
#include "step/abort_gate.hpp"
#include "step/batch.hpp"
#include "step/context.hpp"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace probe {

struct RawParams {
    uint32_t n_ctx = 4096;
    uint32_t n_seq_max = 1;
    uint32_t n_batch = 512;
    uint32_t n_ubatch = 512;
    int32_t n_threads = 1;
    bool kv_unified = true;
    int32_t flash_attention = -1;
    int32_t poll = 0;       // of the compute threads, in ggml's units; < 0 lets ggml make a pool anew for every graph
    uint32_t n_outputs = 0; // rows of logits to make room for; 0 is llama.cpp's default
};

// The question that llama.cpp asks after every graph node.
enum class Callback { none, gate, clock };

// llama_decode on random tokens without the core's bookkeeping and sampling: what the core is compared with, and the
// place where a call of llama_decode can be timed on its own. One thread at a time.
class RawDecoder {
  public:
    RawDecoder(std::shared_ptr<const pyllmcancel::Model> model, const RawParams & params);

    // Forget all tokens of all sequences.
    void clear();

    // Compute `n_tokens` more tokens of each item's sequence in one llama_decode; the nanoseconds it took.
    int64_t decode(const std::vector<pyllmcancel::StepItem> & items, Callback callback);

    // The moments, in nanoseconds after the call, at which the callback was asked.
    std::vector<int64_t> node_times(const std::vector<pyllmcancel::StepItem> & items);

    // Raise a flag that all items share, after a time or at a node counted from 1. An aborted computation leaves the
    // sequences as they were.
    AbortTiming abort_after(const std::vector<pyllmcancel::StepItem> & items, int64_t delay_ns);
    AbortTiming abort_at(const std::vector<pyllmcancel::StepItem> & items, uint32_t node);

  private:
    struct FreeContext {
        void operator()(llama_context * context) const noexcept { llama_free(context); }
    };
    struct FreePool {
        void operator()(ggml_threadpool * pool) const noexcept;
    };

    void fill(const std::vector<pyllmcancel::StepItem> & items);
    void attach_threads(const RawParams & params);
    int32_t run(const std::vector<pyllmcancel::StepItem> & items);
    void set_callback(Callback callback);
    pyllmcancel::AbortGate::Ticket arm(const std::vector<pyllmcancel::StepItem> & items,
                                       const pyllmcancel::CancelFlag & flag);
    static bool note_time(void * self) noexcept;

    std::shared_ptr<const pyllmcancel::Model> model_;
    int32_t n_vocab_;
    std::unique_ptr<ggml_threadpool, FreePool> threads_; // outlives context_, which computes on it
    std::unique_ptr<llama_context, FreeContext> context_;
    std::vector<llama_pos> n_past_;
    std::minstd_rand chance_{1};
    pyllmcancel::Batch batch_;
    pyllmcancel::AbortGate gate_;
    std::vector<int64_t> times_;
};

} // namespace probe
