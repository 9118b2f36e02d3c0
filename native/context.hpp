#pragma once

#include "common_params.hpp"
#include "model.hpp"
#include "row_padding.hpp"
#include "sampler.hpp"
#include "sequences.hpp"
#include "step_items.hpp"
#include "step_runner.hpp"
#include "swapped_prefix.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// A step is one ubatch or, of divided cells, one for each run of seq_ids that follow each other.
struct ContextParams : CommonParams {
    bool kv_unified = true; // false: each sequence has its n_seq_max-th part of the cells to itself (attention only)
    uint32_t n_described_max = 0;   // tokens of prompts whose logprobs one step can give
    int32_t checkpoint_interval = 0; // tokens of a prompt between two copies of a state; 0 makes none
    uint32_t n_checkpoints = 0;      // most copies of one sequence
    uint64_t checkpoint_bytes = 0;   // most bytes of all copies together
    int32_t row_padding = -1;      // 1: see row_padding.hpp; 0: never; -1: where the model's kernels gain by it
    bool trust_any_memory = false; // true: believe recurrent and hybrid memories like attention (for tests)
};

// How a request starts on a sequence.
struct OpenOptions {
    bool reuse = true;       // keep what the sequence's cells hold of the tokens
    int32_t n_described = 0; // leading tokens whose logprobs are wanted, which are then all computed
};

struct StepRow {
    int32_t seq;
    int32_t n_tokens;
    bool sampled = false; // whether this row reached the end of its known tokens, so that `next` means something
    Sampled next;
    std::vector<Sampled> described; // known tokens that this step's logits predict, in order
};

struct StepResult : StepOutcome {
    int64_t sample_us = 0;
    std::vector<StepRow> rows; // in the order of the items
};

// A llama.cpp context, its sequences, and the one function that computes: step().
//
// Rules that the user obeys (the Python engine does, from its one thread):
//  - one thread at a time; a second one that enters during a step gets ContextBusy, nothing is corrupted;
//  - open() a free seq_id, step() it, close() it; a closed sequence may keep its cells as a reusable prefix;
//  - pointers from logits() live until the next call that changes the context.
class Context {
  public:
    // Throws ContextError.
    Context(std::shared_ptr<const Model> model, const ContextParams & params);
    Context(const Context &) = delete;
    Context & operator=(const Context &) = delete;

    // context.cpp: requests on sequences, and steps.

    // Start a request on `seq`. The longest prefix of `tokens` whose cells `seq` still holds is kept, but never the
    // last token, whose logits are wanted; returns how many tokens that is. The sampler is the request's own: a request
    // that is preempted takes its random state along and goes on with it.
    int32_t open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<Sampler> sampler,
                 std::shared_ptr<const CancelFlag> flag, OpenOptions options);

    // Take the request off `seq`. With `keep` its committed cells stay as an idle prefix, otherwise they are freed.
    void close(int32_t seq, bool keep);

    // Free the cells of an idle or open sequence; an open one starts again from its first token.
    void drop_cells(int32_t seq);

    StepResult step(const std::vector<StepItem> & items, StepCost cost);

    // Have the compute threads sleep until the next step; between steps they spin for it.
    void rest() { runner_.rest(); }

    // For tests: raise `flag` at the given graph node, counted from 1, of the next step.
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag) { runner_.raise_at(poll, std::move(flag)); }

    // context_prefixes.cpp: copies of idle prefixes.

    // How many of `tokens` idle or open `seq` could hand to a request that starts with them.
    int32_t common_prefix(int32_t seq, const std::vector<llama_token> & tokens) const {
        return sequences_.common_prefix(seq, tokens);
    }

    // Give idle `to` the first `n_tokens` cells of `from`, at no cost in computation. Divided cells are copied, all that
    // `from` has, if they take no more than `max_bytes`. Returns false, and `to` is empty or unchanged, where the model's
    // memory cannot do that.
    bool share_prefix(int32_t from, int32_t to, int32_t n_tokens, std::size_t max_bytes);

    // Whether copy_out() can do anything: not with memories that cannot be rolled back, or forget. Without flash attention
    // values lie transposed, a few bytes here and there, and copying them takes seconds.
    bool can_swap() const noexcept { return sequences_.keeps_every_cell() && params_.flash_attention != 0; }

    // Bytes that copy_out() of `seq` would copy.
    std::size_t swap_bytes(int32_t seq);

    // Copy what idle `seq` holds out of the context; its cells stay as they are. Null if it holds nothing, or more than
    // `max_bytes`, or this cannot be done.
    std::shared_ptr<const SwappedPrefix> copy_out(int32_t seq, std::size_t max_bytes);

    // Have idle `seq` hold what `prefix` does, and nothing else. False, and it is empty, if there is no room.
    bool swap_in(int32_t seq, const SwappedPrefix & prefix);

    // State.

    int32_t n_committed(int32_t seq) const { return sequences_.at(seq).n_committed; }
    const std::vector<llama_token> & tokens(int32_t seq) const { return sequences_.at(seq).tokens; }

    // The row of logits that `seq` got in the last step, length n_vocab; null if it got none.
    const float * logits(int32_t seq) const { return sequences_.at(seq).logits; }

    // Compute threads of the running step, or the last one. May be called from any thread.
    int32_t n_threads() const noexcept { return runner_.n_threads(); }

    // Most tokens of one sequence, and of all together.
    int32_t n_ctx() const noexcept { return static_cast<int32_t>(llama_n_ctx_seq(runner_.context())); }
    int32_t n_cells() const noexcept { return static_cast<int32_t>(llama_n_ctx(runner_.context())); }
    bool kv_unified() const noexcept { return params_.kv_unified; }
    int32_t n_seq_max() const noexcept { return sequences_.size(); }
    int32_t n_batch() const noexcept { return static_cast<int32_t>(params_.n_batch); }

    // Whether layers may be computed by something else than the CPU.
    static bool can_offload() noexcept { return llama_supports_gpu_offload(); }

    // Cells that `seqs` hold together, and all sequences; cells that several hold count once.
    int32_t n_cells_of(const std::vector<int32_t> & seqs) const { return sequences_.n_cells_of(seqs); }
    int32_t n_cells_used() const { return sequences_.n_cells_used(); }

    // Of all copies of states.
    uint64_t checkpoint_bytes() const noexcept { return sequences_.checkpoint_bytes(); }

    // Padding tokens computed so far.
    int64_t n_padding() const noexcept { return n_padding_; }

    MemoryKind memory_kind() const noexcept { return sequences_.memory_kind(); }

  private:
    void check(const std::vector<StepItem> & items) const;
    std::vector<PaddingToken> padding(const std::vector<StepItem> & items) const;
    void remove(const std::vector<PaddingToken> & padding);
    std::vector<int32_t> fill_batch(const std::vector<StepItem> & items, const std::vector<PaddingToken> & padding);
    void describe(const ContextSequence & sequence, int32_t n_tokens, int32_t first_row, StepRow & row);
    StepRow commit(const StepItem & item, int32_t first_row);
    bool copy_cells(int32_t from, int32_t to, std::size_t max_bytes);

    std::shared_ptr<const Model> model_; // outlives runner_, whose llama_context computes with it
    ContextParams params_;               // as llama.cpp took them
    StepRunner runner_;
    Sequences sequences_;
    bool pads_logits_ = false; // whether rows of padding are wanted for the logits, too
    int64_t n_padding_ = 0;
};

} // namespace pyllmcancel
