#pragma once

#include "cells/media_chunk.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// A run of a sequence's tokens that is not text.
struct MediaSpan {
    int32_t start;
    std::shared_ptr<const MediaLayout> layout;

    int32_t end() const noexcept { return start + layout->n_tokens; }
};

// A prompt's picture, with its embedding.
struct MediaInput {
    int32_t start;
    std::shared_ptr<const MediaChunk> chunk;
};

// The runs of a sequence's tokens that are not text, in their order, and what follows from them for its cells: a token's
// position is not its number, and a prefix may not end everywhere.
class MediaSpans {
  public:
    MediaSpans() = default;

    // Throws UsageError unless each negative token is one of a run.
    MediaSpans(const std::vector<MediaInput> & inputs, const std::vector<llama_token> & tokens);

    bool empty() const noexcept { return spans_.empty(); }

    // The position of token `n`, which is also how many positions the first `n` tokens take.
    llama_pos position(int32_t n) const noexcept;

    // The longest prefix of at most `n` tokens that does not end where none may.
    int32_t whole(int32_t n) const noexcept;

    // The run that token `n` is in, or null.
    const MediaSpan * at(int32_t n) const noexcept;

    // Returns whether a run lies on both sides of the border before token `n`.
    bool divides(int32_t n) const noexcept;

    // How many tokens there are from `n` on, of at most `limit`, that are all text, or all of one run.
    int32_t uniform(int32_t n, int32_t limit) const noexcept;

    // Those of the first `n` tokens.
    MediaSpans of_prefix(int32_t n) const;

  private:
    std::vector<MediaSpan> spans_;
};

} // namespace pyllmcancel
