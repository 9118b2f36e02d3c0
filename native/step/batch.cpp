#include "step/batch.hpp"

namespace pyllmcancel {

void Batch::clear() {
    rows_ = nullptr;
    states_.clear();
    tokens_.clear();
    positions_.clear();
    n_seq_ids_.clear();
    seq_ids_.clear();
    outputs_.clear();
}

int32_t Batch::add(llama_token token, llama_pos pos, llama_seq_id seq, bool output) {
    tokens_.push_back(token);
    positions_.push_back(pos);
    n_seq_ids_.push_back(1);
    seq_ids_.push_back(seq);
    outputs_.push_back(output ? 1 : 0);
    return size() - 1;
}

void Batch::set_rows(const float * rows, int32_t n_rows, std::vector<llama_pos> positions, llama_seq_id seq,
                     bool output) {
    clear();
    const auto count = static_cast<std::size_t>(n_rows);
    rows_ = rows;
    positions_ = std::move(positions);
    n_seq_ids_.assign(count, 1);
    seq_ids_.assign(count, seq);
    outputs_.assign(count, 0);
    outputs_.back() = output ? 1 : 0;
}

llama_batch Batch::view() {
    // The rows point into seq_ids_, which may have moved while it grew: set them last.
    seq_id_rows_.resize(seq_ids_.size());
    for (std::size_t i = 0; i < seq_ids_.size(); ++i) {
        seq_id_rows_[i] = &seq_ids_[i];
    }
    llama_batch batch{};
    batch.n_tokens = size();
    batch.token = rows_ ? nullptr : tokens_.data();
    batch.embd = states_.empty() ? const_cast<float *>(rows_) : states_.data(); // llama.cpp copies them
    batch.pos = positions_.data();
    batch.n_seq_id = n_seq_ids_.data();
    batch.seq_id = seq_id_rows_.data();
    batch.logits = outputs_.data();
    return batch;
}

} // namespace pyllmcancel
