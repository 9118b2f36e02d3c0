#pragma once

#include "cells/checkpoints.hpp"
#include "cells/hidden_rows.hpp"
#include "cells/media_spans.hpp"
#include "cells/shared_cells.hpp"
#include "model/model.hpp"
#include "sampling/sampler.hpp"
#include "step/sequence_table.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

struct ContextParams;

struct ContextSequence : Sequence {
    int32_t n_described = 0;        // leading tokens whose logprobs are wanted
    MediaSpans media;               // of the tokens
    std::vector<MediaInput> inputs; // the request's pictures; none of an idle sequence
    Checkpoints checkpoints;        // of the first n_committed tokens, where the memory kind wants any
    HiddenRows states;              // of committed tokens; for heads: those that go with the tokens to compute
    const float * logits = nullptr; // into llama.cpp's buffer, of the last step
    std::shared_ptr<Sampler> sampler;
};

// The sequences of a Context, and the truth about their cells: the first `n_committed` tokens of each are in llama.cpp's
// memory, and nothing else is. It is never read back from llama.cpp, whose seq_pos_max counts aborted work on some models.
class Sequences : public SequenceTable<ContextSequence> {
  public:
    Sequences(llama_context * context, const Model & model, const ContextParams & params);

    MemoryKind memory_kind() const noexcept { return kind_; }

    // Returns whether an abort leaves the committed cells as they were.
    bool survives_abort() const noexcept;

    // Returns whether llama.cpp has a cell for each committed token, for as long as it is committed: not where a state
    // stands for all of them, or where a sliding window forgets.
    bool keeps_every_cell() const noexcept { return kind_ == MemoryKind::attention && n_swa_ <= 0; }

    // Returns whether the memory of `seq` can go on from its first `n_tokens`: a sliding window must still hold what
    // the next position looks back at.
    bool window_covers(int32_t seq, int32_t n_tokens) const;

    // Returns the number of tokens below which a copy of idle `seq` gives nothing but its checkpoints. llama.cpp leaves
    // cells that the window has passed out of a copy.
    int32_t least_reusable(int32_t seq) const;

    // Returns how many of `tokens`, and of the first `most`, idle or open `seq` could give to a request that starts with
    // them. `tokens` may begin behind the first `n_held` tokens that `seq` has committed, which count then, too.
    int32_t common_prefix(int32_t seq, const std::vector<llama_token> & tokens, int32_t most, int32_t n_held = 0) const;

    // Have `seq` hold exactly its first `n_tokens` tokens, or none if the memory cannot be restored; or what is before a
    // picture, if they end inside one where no prefix may. `state_is_intact` is
    // false after a step that did not return ok: a recurrent state is then unknown, also at the committed length.
    void rewind(int32_t seq, int32_t n_tokens, bool state_is_intact = true);

    // Whole sequences can always be removed.
    void clear(int32_t seq) { rewind(seq, 0); }

    // After a step that did not return ok: nothing of it counts. llama.cpp has tried the same, and has ignored whether it
    // succeeded.
    void roll_back(const std::vector<StepItem> & items);

    // Have empty `to` hold the first `n_tokens` cells of `from`, which both hold then. Unified cells only.
    void share(int32_t from, int32_t to, int32_t n_tokens);

    // Called before a chunk of a prompt: makes the copy that an abort, or a later change of the prompt, can go back to.
    void save_checkpoints(const std::vector<StepItem> & items);
    uint64_t checkpoint_bytes() const noexcept;

    // Cells that `seqs` hold together, and all sequences; cells that several hold count once.
    int32_t n_cells_of(const std::vector<int32_t> & seqs) const;
    int32_t n_cells_used() const { return shared_cells_.count(lengths()); }

    // The committed tokens of every sequence.
    std::vector<int32_t> lengths() const;

  private:
    bool is_checkpoint_due(const ContextSequence & sequence, const StepItem & item) const;
    void save_checkpoint(int32_t seq);

    llama_context * context_;
    const ContextParams & params_;
    MemoryKind kind_;
    int32_t n_swa_; // tokens that a sliding window spans; 0 is none
    SharedCells shared_cells_;
};

} // namespace pyllmcancel
