#pragma once

#include "abort_gate.hpp"
#include "batch.hpp"
#include "cancel_flag.hpp"
#include "model.hpp"
#include "owned_context.hpp"
#include "step_items.hpp"
#include "step_status.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

struct EmbedderParams {
    uint32_t n_ctx = 4096;   // cells, shared by all sequences; of no meaning to a model without memory
    uint32_t n_seq_max = 64; // most texts in one step; seq_ids are 0 … n_seq_max - 1
    uint32_t n_batch = 512;  // most tokens in one step; a step is always one ubatch
    int32_t n_threads = 1;
    int32_t n_threads_batch = 1;
    bool adapt_threads = false; // as Context's
    int32_t pooling = -1; // llama_pooling_type; -1 is what the model says
    bool offload_kqv = true;
    int32_t flash_attention = -1; // llama.cpp's: -1 automatic, 0 off, 1 on
    int32_t type_k = 1;           // ggml_type of the cells' keys; 1 is F16
    int32_t type_v = 1;           // and of their values
    double cut_seconds = -1.0;    // see AbortGate::install
    bool abortable = true;        // false: never abort a step (for tests that show what that guards against)
};

struct EmbedRow {
    int32_t seq;
    int32_t n_tokens;
    bool faulty = false;          // the text is computed, but the numbers are no embedding: not finite, or all zero
    std::vector<float> embedding; // of length 1 (L2); empty before the text's end, when faulty, and when cancelled
};

struct EmbedResult {
    StepStatus status = StepStatus::ok;
    bool spared = false;  // a member was cancelled, and the policy let the step finish for the others
    uint32_t polls = 0;   // graph nodes computed
    int64_t decode_us = 0;
    int32_t n_threads = 1; // that computed
    std::vector<EmbedRow> rows; // in the order of the items
};

// A llama.cpp context that pools: texts in, one normalised vector out for each.
//
// The rules are Context's: one thread at a time, a second one gets ContextBusy; open() a free seq_id, step() it,
// close() it. Nothing is kept of a closed text.
//
// Most models must see a text whole, in one step: encoders look both ways, and a mean is taken over one ubatch. A model
// that looks back only, and pools the last token, takes its texts in parts (`splits()`); what earlier steps computed
// stays true after an abort, as in a Context.
class Embedder {
  public:
    // Throws ContextError.
    Embedder(std::shared_ptr<const Model> model, const EmbedderParams & params);
    Embedder(const Embedder &) = delete;
    Embedder & operator=(const Embedder &) = delete;

    void open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<const CancelFlag> flag);
    void close(int32_t seq);
    EmbedResult step(const std::vector<StepItem> & items, StepCost cost);

    // As Context's.
    void rest();

    // For tests: raise `flag` at the given graph node, counted from 1, of the next step.
    void raise_at(uint32_t poll, std::shared_ptr<CancelFlag> flag) { gate_.raise_at(poll, std::move(flag)); }

    int32_t n_committed(int32_t seq) const { return at(seq).n_committed; }
    int32_t n_seq_max() const noexcept { return static_cast<int32_t>(texts_.size()); }
    int32_t n_batch() const noexcept { return static_cast<int32_t>(params_.n_batch); }
    int32_t n_embd() const { return llama_model_n_embd_out(model_->handle()); }
    int32_t pooling() const noexcept { return pooling_; }
    bool splits() const noexcept { return splits_; }

    // As Context's.
    int32_t n_threads() const noexcept { return context_.n_threads(); }

    // Cells; 0 for a model without memory.
    int32_t n_ctx() const noexcept;
    int32_t n_cells_used() const noexcept;

    // Most tokens of one text.
    int32_t n_text_max() const noexcept;
    MemoryKind memory_kind() const noexcept { return kind_; }
    const std::shared_ptr<const Model> & model() const noexcept { return model_; }

  private:
    struct Text {
        std::vector<llama_token> tokens;
        int32_t n_committed = 0; // tokens that are computed; while short of all, their cells are true
        bool open = false;
        std::shared_ptr<const CancelFlag> flag;
    };

    const Text & at(int32_t seq) const;
    Text & at(int32_t seq);
    bool keeps_truth() const noexcept { return kind_ == MemoryKind::attention || kind_ == MemoryKind::none; }
    void forget(int32_t seq, int32_t n_kept);
    void validate(const std::vector<StepItem> & items) const;
    void fill_batch(const std::vector<StepItem> & items);
    AbortGate::Ticket arm(const std::vector<StepItem> & items, StepCost cost);
    void roll_back(const std::vector<StepItem> & items);
    void commit(const std::vector<StepItem> & items, EmbedResult & result);
    void read_embedding(EmbedRow & row) const;

    std::shared_ptr<const Model> model_;
    EmbedderParams params_;
    MemoryKind kind_;
    OwnedContext context_;
    llama_memory_t memory_ = nullptr; // context_'s; null for a model that keeps none
    int32_t pooling_ = 0;
    bool splits_ = false;
    std::vector<Text> texts_;
    Batch batch_;
    AbortGate gate_;
    uint32_t polls_per_graph_ = 0; // of the last step that ran to its end
    std::atomic<bool> busy_{false};
};

} // namespace pyllmcancel
