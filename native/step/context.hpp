#pragma once

#include "cells/swapped_prefix.hpp"
#include "model/model.hpp"
#include "sampling/sampler.hpp"
#include "step/common_params.hpp"
#include "step/sequences.hpp"
#include "step/step_items.hpp"
#include "step/step_result.hpp"
#include "step/step_runner.hpp"
#include "step/steps_ahead.hpp"

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace pyllmcancel {

// A step is one ubatch or, of divided cells, one for each run of seq_ids that follow each other.
struct ContextParams : CommonParams {
    bool kv_unified = true; // false: each sequence has its n_seq_max-th part of the cells to itself (attention only)
    uint32_t n_extra_outputs = 0;   // limit of one step's rows of logits, besides one for each sequence: of described
                                    // tokens of prompts, and of drafted tokens
    int32_t checkpoint_interval = 0; // tokens of a prompt between two copies of a state; 0 makes none
    uint32_t n_checkpoints = 0;      // limit of copies of one sequence
    uint64_t checkpoint_bytes = 0;   // limit in bytes of all copies together
    uint32_t n_states = 0; // hidden states that are kept of each sequence's last tokens, for a context of heads
    bool heads = false; // the model's heads compute, not the model: each token goes with the hidden state before it
    bool trust_any_memory = false; // true: treat recurrent and hybrid memories like attention (for tests)
};

// The parameters that a Context asks for.
llama_context_params llama_params(const ContextParams & params);

// The way in which a request starts on a sequence.
struct OpenOptions {
    int32_t n_held = 0; // committed tokens of the idle sequence that come before the given ones; they are all text
    int32_t n_reusable = std::numeric_limits<int32_t>::max(); // leading tokens that the sequence's cells may give
    int32_t n_described = 0; // leading tokens whose logprobs are wanted, which are then all computed
    AdapterScales adapters; // that compute the tokens from `adapted_from` on; those before are computed without any
    int32_t adapted_from = 0;
    std::vector<MediaInput> media; // the runs of the tokens that are not text
};

// The last graph as llama.cpp's scheduler sees it: its parts, each on one device, between which tensors are copied, and the
// copies that it keeps of each input; and the graphs so far that were used again as they were.
struct GraphCounts {
    int32_t splits = 0;
    int32_t copies = 0;
    int32_t reused = 0;
};

// The point at which one item's sequence ends, as far as its tokens show: a step ahead begins for none that has ended.
struct StepEnd {
    int32_t n_wanted = 0; // tokens, the next one included
    std::vector<llama_token> stop_tokens; // that end it, as the model's own do
};

// A llama.cpp context, its sequences, and the steps that compute them.
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
    // last token, whose logits are wanted; returns how many tokens that is. The user knows by which adapters the cells
    // were computed, and says how many tokens may be kept. The sampler is the request's own: a request that is preempted
    // takes its random state along and goes on with it.
    int32_t open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<Sampler> sampler,
                 std::shared_ptr<const CancelFlag> flag, OpenOptions options);

    // Take the request off `seq`. With `keep` its committed cells stay as an idle prefix, otherwise they are freed.
    void close(int32_t seq, bool keep);

    // Free the cells of an idle or open sequence; an open one starts again from its first token.
    void drop_cells(int32_t seq);

    // Computes the items in one llama_decode. If that succeeds, their tokens are committed, and a sequence whose known
    // tokens are all computed gets its next ones. Else the step's sequences are rolled back to their committed tokens, or
    // to a checkpoint where the memory cannot undo tokens.
    //
    // A draft is computed in the same step as the known tokens before it. The sampler chooses after each of its tokens.
    // The draft is accepted as far as it says what was chosen: the tokens are those that single steps would have given.
    StepResult step(const std::vector<StepItem> & items, StepCost cost);

    // Returns whether items may have drafts: not where a rejected one cannot be undone.
    bool can_draft() const noexcept { return sequences_.survives_abort(); }

    // context_ahead.cpp: a step that begins before the last one's result is read.

    // Starts the thread that computes steps ahead, if it does not run yet. Throws ContextError.
    void start_ahead();

    // As step(); then, in a step ahead, it may compute one more token for each of the same sequences.
    // That step begins by itself unless one of them has ended, is cancelled or at fault, cells are missing, or it is forbidden.
    // While it is ahead, as StepResult tells, calls that change the context throw ContextBusy, except collect().
    StepResult step_ahead(const std::vector<StepItem> & items, StepCost cost, std::vector<StepEnd> ends);

    // The result of the step ahead; with `goes_on` another may begin. Throws UsageError if none is ahead.
    StepResult collect(bool goes_on);

    // From any thread: lets no step begin ahead, until allow_ahead().
    void forbid_ahead() noexcept { ahead_forbidden_.store(true, std::memory_order_release); }
    void allow_ahead() noexcept { ahead_forbidden_.store(false, std::memory_order_release); }

    // Lets the compute threads sleep until the next step; between steps they spin.
    void rest() { runner_.rest(); }

    // Have steps take turns with an encoder that computes beside them.
    void take_turns(std::shared_ptr<Turns> turns) { runner_.take_turns(std::move(turns)); }

    // Has the next step, whatever it computes, abort once `flag` is raised.
    void give_way(std::shared_ptr<const CancelFlag> flag) { runner_.give_way(std::move(flag)); }

    // For tests: raise `flag` at the given graph node, counted from 1, of the next step, or `n_later` steps later.
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag, uint32_t n_later) {
        runner_.raise_at(poll, std::move(flag), n_later);
    }

    // context_prefixes.cpp: copies of idle prefixes.

    // Returns how many of `tokens`, and of the first `most`, idle or open `seq` could give to a request that starts with
    // them.
    int32_t common_prefix(int32_t seq, const std::vector<llama_token> & tokens, int32_t most) const {
        return sequences_.common_prefix(seq, tokens, most);
    }

    // Give idle `to` the first `n_tokens` cells of `from`, at no cost in computation. Divided cells are copied, all that
    // `from` has, if they take no more than `max_bytes`. Returns false, and `to` is empty or unchanged, where the model's
    // memory cannot do that.
    bool share_prefix(int32_t from, int32_t to, int32_t n_tokens, std::size_t max_bytes);

    // Returns whether prefixes can leave their cells for a while: not with memories that cannot be rolled back, or
    // forget, of which a copy gives less than they do. Without flash attention values lie transposed, a few bytes here
    // and there, and copying them takes seconds.
    bool can_swap() const noexcept { return sequences_.keeps_every_cell() && params_.flash_attention != 0; }

    // Returns whether copy_out() and swap_in() can do anything: with every memory, if its cells lie in order.
    bool can_copy() const noexcept {
        return params_.flash_attention != 0 || sequences_.memory_kind() == MemoryKind::recurrent;
    }

    // Bytes that copy_out() of `seq` would copy.
    std::size_t swap_bytes(int32_t seq);

    // Copy what idle `seq` holds out of the context, its checkpoints included; its cells stay as they are. Null if it
    // holds nothing, or more than `max_bytes`, or this cannot be done.
    std::shared_ptr<const SwappedPrefix> copy_out(int32_t seq, std::size_t max_bytes);

    // Have idle `seq` hold what `prefix` does, and nothing else. False, and it is empty, if there is no room.
    bool swap_in(int32_t seq, const SwappedPrefix & prefix);

    // context_heads.cpp: the model's own heads.

    // The first token whose hidden state is kept; the number of committed tokens if none is.
    int32_t first_state(int32_t seq) const;

    // For a context of heads: gives the next `n_tokens` pending tokens of open `seq` their hidden states. `model` has
    // kept them of its sequence `of`, whose token `first` is the first one here. Throws UsageError if it has not.
    void follow(int32_t seq, const Context & model, int32_t of, int32_t first, int32_t n_tokens);

    // State. None of it may be read while a step is ahead; this one throws ContextBusy then, and while a step runs.
    void check_at_rest() const { runner_.check_at_rest(); }

    int32_t n_committed(int32_t seq) const { return sequences_.at(seq).n_committed; }
    const std::vector<llama_token> & tokens(int32_t seq) const { return sequences_.at(seq).tokens; }

    // The row of logits that `seq` got in the last step, length n_vocab; null if it got none.
    const float * logits(int32_t seq) const { return sequences_.at(seq).logits; }

    // Compute threads of the running step, or the last one. May be called from any thread.
    int32_t n_threads() const noexcept { return runner_.n_threads(); }

    // Limits of the tokens of one sequence, and of all together.
    int32_t n_ctx() const noexcept { return static_cast<int32_t>(llama_n_ctx_seq(runner_.context())); }
    int32_t n_cells() const noexcept { return static_cast<int32_t>(llama_n_ctx(runner_.context())); }
    bool kv_unified() const noexcept { return params_.kv_unified; }
    int32_t n_seq_max() const noexcept { return sequences_.size(); }
    int32_t n_batch() const noexcept { return static_cast<int32_t>(params_.n_batch); }

    // Returns whether a GPU computes a part of its steps.
    bool is_offloaded() const { return model_->is_offloaded(); }

    // Cells that `seqs` hold together, and all sequences; cells that several hold count once.
    int32_t n_cells_of(const std::vector<int32_t> & seqs) const { return sequences_.n_cells_of(seqs); }
    int32_t n_cells_used() const { return sequences_.n_cells_used(); }

    // The bytes of all copies of states.
    uint64_t checkpoint_bytes() const noexcept { return sequences_.checkpoint_bytes(); }

    GraphCounts graph_counts() const;

    MemoryKind memory_kind() const noexcept { return sequences_.memory_kind(); }

  private:
    // The step that is ahead, or begins.
    struct Present {
        std::vector<StepItem> items;
        std::vector<StepEnd> ends;
        StepCost cost;
    };

    StepResult compute(const std::vector<StepItem> & items, StepCost cost);
    bool advance(const StepResult & result);
    bool has_ended(const StepRow & row, const StepEnd & end) const;
    bool ends(llama_token token, const StepEnd & end) const;
    void check(const std::vector<StepItem> & items) const;
    void check_draft(const StepItem & item, const ContextSequence & sequence) const;
    void check_media(const std::vector<StepItem> & items) const;
    void check_states(const std::vector<StepItem> & items) const;
    void keep_states(const StepItem & item, int32_t n_before, int32_t first_row);
    void keep_state_of_guess(ContextSequence & sequence, int32_t row);
    const MediaSpan * media_of(const StepItem & item) const;
    void fill_media(const StepItem & item, const MediaSpan & span);
    std::vector<int32_t> fill_batch(const std::vector<StepItem> & items);
    void describe(const ContextSequence & sequence, int32_t n_tokens, int32_t first_row, StepRow & row);
    StepRow commit(const StepItem & item, int32_t first_row);
    void choose(const StepItem & item, int32_t last_row, StepRow & row);
    bool copy_cells(int32_t from, int32_t to, std::size_t max_bytes);

    std::shared_ptr<const Model> model_; // outlives runner_, whose llama_context computes with it
    ContextParams params_; // as llama.cpp took them
    StepRunner runner_;
    Sequences sequences_;
    std::shared_ptr<const MediaRows> rows_; // of the picture in the step, or in the last one that had one
    Present present_; // of the thread that computes steps ahead; written by others only while none is ahead
    std::atomic<bool> ahead_forbidden_{false};
    StepsAhead::Owner steps_ahead_; // from the first one on; after all the others, which its thread uses
};

} // namespace pyllmcancel
