#pragma once

#include "model/model.hpp"
#include "step/common_params.hpp"
#include "step/sequence_table.hpp"
#include "step/step_items.hpp"
#include "step/step_runner.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

struct EmbedderParams : CommonParams {
    int32_t pooling = -1; // llama_pooling_type; -1 is what the model says
};

// The parameters that an Embedder asks for.
llama_context_params llama_params(const EmbedderParams & params);

struct EmbedRow {
    int32_t seq;
    int32_t n_tokens;
    bool faulty = false; // the text is computed, but its numbers are not finite or, of embeddings, all zero
    // The text's vector, of length 1 (L2); or the vectors of its tokens, one after the other; or its scores. Empty
    // before the text's end, when faulty, and when cancelled.
    std::vector<float> embedding;
};

struct EmbedResult : StepOutcome {
    std::vector<EmbedRow> rows; // in the order of the items
};

// A llama.cpp context for texts: each has one normalised vector, or one of each token, or its scores.
//
// The rules are Context's: one thread at a time, a second one gets ContextBusy; open() a free seq_id, step() it,
// close() it. Nothing is kept of a closed text.
//
// Most models must see a text whole, in one step: encoders look both ways, and a mean is taken over one ubatch. A model
// that looks back only, and pools or ranks the last token, takes its texts in parts (`splits()`); what earlier steps
// computed stays true after an abort, as in a Context.
class Embedder {
  public:
    // Throws ContextError.
    Embedder(std::shared_ptr<const Model> model, const EmbedderParams & params);
    Embedder(const Embedder &) = delete;
    Embedder & operator=(const Embedder &) = delete;

    void open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<const CancelFlag> flag,
              AdapterScales adapters);
    void close(int32_t seq);
    EmbedResult step(const std::vector<StepItem> & items, StepCost cost);

    // As Context's.
    void rest() { runner_.rest(); }
    void give_way(std::shared_ptr<const CancelFlag> flag) { runner_.give_way(std::move(flag)); }
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag) { runner_.raise_at(poll, std::move(flag)); }
    int32_t n_threads() const noexcept { return runner_.n_threads(); }

    int32_t n_committed(int32_t seq) const { return texts_.at(seq).n_committed; }
    int32_t n_seq_max() const noexcept { return texts_.size(); }
    int32_t n_batch() const noexcept { return static_cast<int32_t>(params_.n_batch); }

    // The length of an embedding, or the number of a text's scores.
    int32_t n_embd() const;
    int32_t pooling() const noexcept { return pooling_; }
    bool splits() const noexcept { return splits_; }

    // Cells; 0 for a model without memory.
    int32_t n_ctx() const noexcept;
    int32_t n_cells_used() const noexcept;

    // Limit of one text's tokens.
    int32_t n_text_max() const noexcept;
    MemoryKind memory_kind() const noexcept { return kind_; }

  private:
    // Returns whether an abort leaves the committed cells as they were. Without memory there are none.
    bool survives_abort() const noexcept { return kind_ == MemoryKind::attention || kind_ == MemoryKind::none; }
    void rewind(int32_t seq, int32_t n_tokens);
    void fill_batch(const std::vector<StepItem> & items);
    void roll_back(const std::vector<StepItem> & items);
    EmbedRow commit(const StepItem & item, int32_t place);
    void read_embedding(EmbedRow & row, int32_t place) const;

    std::shared_ptr<const Model> model_; // outlives runner_, whose llama_context computes with it
    EmbedderParams params_; // as llama.cpp took them
    StepRunner runner_;
    llama_memory_t memory_; // runner_'s; null for a model that keeps none
    MemoryKind kind_;
    int32_t pooling_;
    bool splits_;
    SequenceTable<Sequence> texts_;
};

} // namespace pyllmcancel
