#pragma once

#include "abort_gate.hpp"
#include "batch.hpp"
#include "cancel_flag.hpp"
#include "checkpoints.hpp"
#include "model.hpp"
#include "owned_context.hpp"
#include "row_padding.hpp"
#include "sampler.hpp"
#include "shared_cells.hpp"
#include "step_items.hpp"
#include "step_status.hpp"
#include "swapped_prefix.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// Tokens of prompts whose logprobs one step can give: each costs a row of logits as long as the vocabulary.
constexpr uint32_t MOST_DESCRIBED = 32;

struct ContextParams {
    uint32_t n_ctx = 4096;   // cells of all sequences together
    bool kv_unified = true;  // false: each sequence has its n_seq_max-th part of the cells to itself (attention only)
    uint32_t n_seq_max = 4;  // seq_ids are 0 … n_seq_max - 1
    uint32_t n_batch = 512;  // most tokens in one step: one ubatch or, of divided cells, one for each run of seq_ids
    int32_t n_threads = 1;
    int32_t n_threads_batch = 1;
    bool adapt_threads = false; // those are the most: fewer in steps beside other busy programs (thread_policy.hpp)
    bool offload_kqv = true;
    int32_t flash_attention = -1;  // llama.cpp's: -1 automatic, 0 off, 1 on
    int32_t type_k = 1;            // ggml_type of the cells' keys; 1 is F16
    int32_t type_v = 1;            // and of their values
    int32_t checkpoint_interval = 64;            // tokens of a prompt between two copies of a state; 0 makes none
    uint32_t n_checkpoints = 4;                  // most copies of one sequence
    uint64_t checkpoint_bytes = 1ULL << 30U;     // most bytes of all copies together
    int32_t row_padding = -1;      // 1: see row_padding.hpp; 0: never; -1: where the model's kernels gain by it
    double cut_seconds = -1.0;     // see AbortGate::install
    bool abortable = true;         // false: never abort a step (for tests that show what that guards against)
    bool trust_any_memory = false; // true: believe recurrent and hybrid memories like attention (for the same tests)
};

// How a request starts on a sequence.
struct OpenOptions {
    bool reuse = true;            // keep what the sequence's cells hold of the tokens
    int32_t n_described = 0;      // leading tokens whose logprobs are wanted, which are then all computed
};

struct StepRow {
    int32_t seq;
    int32_t n_tokens;
    bool sampled = false; // whether this row reached the end of its known tokens, so that `next` means something
    Sampled next;
    std::vector<Sampled> described; // known tokens that this step's logits predict, in order
};

struct StepResult {
    StepStatus status = StepStatus::ok;
    bool spared = false;      // a member was cancelled, and the policy let the step finish for the others
    uint32_t polls = 0;       // graph nodes computed
    int64_t decode_us = 0;
    int64_t sample_us = 0;
    int32_t n_threads = 1; // that computed
    std::vector<StepRow> rows; // in the order of the items
};

// A llama.cpp context, its sequences, and the one function that computes: step().
//
// Rules that the user obeys (the Python engine does, from its one thread):
//  - one thread at a time; a second one that enters during a step gets ContextBusy, nothing is corrupted;
//  - open() a free seq_id, step() it, close() it; a closed sequence may keep its cells as a reusable prefix;
//  - pointers from logits() live until the next call that changes the context.
//
// The truth about cells is `n_committed`, advanced when a step returned ok and never read back from llama.cpp, whose
// seq_pos_max counts aborted work on some models.
class Context {
  public:
    // Throws ContextError.
    Context(std::shared_ptr<const Model> model, const ContextParams & params);
    Context(const Context &) = delete;
    Context & operator=(const Context &) = delete;

    // Start a request on `seq`. The longest prefix of `tokens` whose cells `seq` still holds is kept, but never the
    // last token, whose logits are wanted; returns how many tokens that is. The sampler is the request's own: a request
    // that is preempted takes its random state along and goes on with it.
    int32_t open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<Sampler> sampler,
                 std::shared_ptr<const CancelFlag> flag, OpenOptions options);

    // Take the request off `seq`. With `keep` its committed cells stay as an idle prefix, otherwise they are freed.
    void close(int32_t seq, bool keep);

    // Free the cells of an idle or open sequence; an open one starts again from its first token.
    void drop_cells(int32_t seq);

    // How many of `tokens` idle or open `seq` could hand to a request that starts with them.
    int32_t common_prefix(int32_t seq, const std::vector<llama_token> & tokens) const;

    // Give idle `to` the first `n_tokens` cells of `from`, at no cost in computation. Divided cells are copied, all that
    // `from` has, if they take no more than `max_bytes`. Returns false, and `to` is empty or unchanged, where the model's
    // memory cannot do that.
    bool share_prefix(int32_t from, int32_t to, int32_t n_tokens, std::size_t max_bytes);

    // Whether copy_out() can do anything: not with memories that cannot be rolled back, or forget. Without flash attention
    // values lie transposed, a few bytes here and there, and copying them takes seconds.
    bool can_swap() const noexcept {
        return kind_ == MemoryKind::attention && n_swa_ <= 0 && params_.flash_attention != 0;
    }

    // Whether layers may be computed by something else than the CPU.
    static bool can_offload() noexcept { return llama_supports_gpu_offload(); }

    // Bytes that copy_out() of `seq` would copy.
    std::size_t swap_bytes(int32_t seq);

    // Copy what idle `seq` holds out of the context; its cells stay as they are. Null if it holds nothing, or more than
    // `max_bytes`, or this cannot be done.
    std::shared_ptr<const SwappedPrefix> copy_out(int32_t seq, std::size_t max_bytes);

    // What idle `seq` holds, by name only: to see later whether somebody asks for it.
    std::shared_ptr<const SwappedPrefix> ghost(int32_t seq);

    // Have idle `seq` hold what `prefix` does, and nothing else. False, and it is empty, if there is no room.
    bool swap_in(int32_t seq, const SwappedPrefix & prefix);

    StepResult step(const std::vector<StepItem> & items, StepCost cost);

    // Nobody runs: have the compute threads sleep until the next step().
    void rest();

    // For tests: raise `flag` at the given graph node, counted from 1, of the next step.
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag) { gate_.raise_at(poll, std::move(flag)); }

    int32_t n_committed(int32_t seq) const { return at(seq).n_committed; }
    const std::vector<llama_token> & tokens(int32_t seq) const { return at(seq).tokens; }

    // The row of logits that `seq` got in the last step, length n_vocab; null if it got none.
    const float * logits(int32_t seq) const { return at(seq).logits; }

    // Compute threads of the running step, or the last one. May be called from any thread.
    int32_t n_threads() const noexcept { return context_.n_threads(); }

    // Most tokens of one sequence, and of all together.
    int32_t n_ctx() const noexcept;
    int32_t n_cells() const noexcept;
    bool kv_unified() const noexcept { return params_.kv_unified; }
    int32_t n_seq_max() const noexcept { return static_cast<int32_t>(sequences_.size()); }
    int32_t n_batch() const noexcept { return static_cast<int32_t>(params_.n_batch); }
    // Cells that `seqs` hold together, and all sequences; those that several hold count once.
    int32_t n_cells_of(const std::vector<int32_t> & seqs) const;
    int32_t n_cells_used() const;
    uint64_t checkpoint_bytes() const noexcept;

    // Tokens computed so far for nobody, because others are done sooner with them.
    int64_t n_padding() const noexcept { return n_padding_; }

    // Time spent on copying states so far.
    int64_t checkpoint_us() const noexcept { return checkpoint_us_; }
    MemoryKind memory_kind() const noexcept { return kind_; }
    const std::shared_ptr<const Model> & model() const noexcept { return model_; }

  private:
    struct Sequence {
        std::vector<llama_token> tokens; // all that are known: prompt and generated
        int32_t n_committed = 0;         // tokens whose cells are true
        bool open = false;
        int32_t n_described = 0;         // leading tokens whose logprobs are wanted
        Checkpoints checkpoints;         // of the first n_committed tokens, where the memory kind wants any
        const float * logits = nullptr;  // into llama.cpp's buffer, of the last step
        std::shared_ptr<Sampler> sampler;
        std::shared_ptr<const CancelFlag> flag;

        int32_t n_known() const noexcept { return static_cast<int32_t>(tokens.size()); }
    };

    const Sequence & at(int32_t seq) const;
    Sequence & at(int32_t seq);
    Sequence & idle(int32_t seq);
    bool keeps_truth() const noexcept;
    bool window_covers(int32_t seq, int32_t n_tokens) const;
    int32_t reusable(int32_t seq, int32_t n_tokens) const;
    void rewind(int32_t seq, int32_t n_tokens, bool state_is_true);
    bool copy_cells(int32_t from, int32_t to, std::size_t max_bytes);
    void save_checkpoints(const std::vector<StepItem> & items);
    std::size_t n_outputs(const std::vector<StepItem> & items) const;
    void validate(const std::vector<StepItem> & items) const;
    std::vector<PaddingToken> padding(const std::vector<StepItem> & items) const;
    std::vector<int32_t> fill_batch(const std::vector<StepItem> & items, const std::vector<PaddingToken> & padding);
    void remove(const std::vector<PaddingToken> & padding);
    AbortGate::Ticket arm(const std::vector<StepItem> & items, StepCost cost);
    void roll_back(const std::vector<StepItem> & items);
    void describe(const Sequence & sequence, int32_t n_tokens, int32_t first_row, StepRow & row);
    void commit(const std::vector<StepItem> & items, const std::vector<int32_t> & first_rows, StepResult & result);

    std::shared_ptr<const Model> model_;
    ContextParams params_;
    MemoryKind kind_;
    int32_t n_swa_;
    OwnedContext context_;
    std::vector<Sequence> sequences_;
    SharedCells shared_cells_;
    Batch batch_;
    AbortGate gate_;
    uint32_t polls_per_graph_ = 0; // of the last step that ran to its end
    int64_t checkpoint_us_ = 0;
    int64_t n_padding_ = 0;
    bool pads_logits_ = false; // whether rows of padding are wanted for the logits, too
    std::atomic<bool> busy_{false};
};

} // namespace pyllmcancel
