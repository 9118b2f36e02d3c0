#pragma once

#include "cells/pages.hpp"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// Copies of the memory of one sequence that cannot be rolled back: the recurrent state of recurrent and hybrid models,
// or the window of sliding-window ones. An aborted prompt continues from the newest copy, a changed prompt from the
// last one before the change. Each copy belongs to the first `n_tokens` tokens of its sequence.
class Checkpoints {
  public:
    // Copies the state that `seq` has after `n_tokens` tokens, and drops other copies so that there are at most `most`,
    // of at most `room` bytes. Returns false, with nothing copied, for a state that is itself too large.
    bool save(llama_context * context, llama_seq_id seq, int32_t n_tokens, std::size_t most, std::size_t room);

    // Returns the length of the newest copy of at most `n_tokens` tokens; 0 if there is none.
    int32_t latest(int32_t n_tokens) const noexcept;

    // Restores the state after exactly `n_tokens` tokens. False if there is none, or llama.cpp refuses it; the
    // sequence's memory must be cleared then.
    bool restore(llama_context * context, llama_seq_id seq, int32_t n_tokens) const;

    // Drops the copies of more than `n_tokens` tokens.
    void drop_after(int32_t n_tokens);

    // Drops the copy that leaves the smallest gap; there must be one.
    void drop_one();

    // Copies that come from elsewhere, shortest first: their memory is shared, not copied.
    void add(int32_t n_tokens, std::shared_ptr<const Pages> state);

    std::size_t size() const noexcept { return checkpoints_.size(); }
    std::size_t n_bytes() const noexcept;

    // The length and the state of a copy.
    int32_t length(std::size_t index) const { return checkpoints_.at(index).n_tokens; }
    const Pages & state(std::size_t index) const { return *checkpoints_.at(index).state; }

    // Bytes of one copy of the state that `seq` has now.
    static std::size_t size_of(llama_context * context, llama_seq_id seq);

  private:
    struct Checkpoint {
        int32_t n_tokens;
        std::shared_ptr<const Pages> state; // shared with copies of the whole sequence
    };

    std::vector<Checkpoint> checkpoints_; // shortest first
};

// A sequence whose copies may be dropped for another one's, and whether it has a request.
struct CheckpointOwner {
    Checkpoints * checkpoints;
    bool open;
};

// The part of `limit` bytes that one sequence's copies may take beside those of the `others`, whose copies are dropped
// until there is room for one of `size`. A prompt without any copy would start from nothing after every cancel, and a
// client whose time-out is shorter than its prompt would retry for ever.
std::size_t make_room(std::size_t size, std::size_t limit, const std::vector<CheckpointOwner> & others);

} // namespace pyllmcancel
