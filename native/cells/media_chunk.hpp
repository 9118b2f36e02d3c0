#pragma once

#include "llama.h"
#include "mtmd.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pyllmcancel {

// The facts of a picture's, or a sound's, run of tokens in a prompt, which are known before it is encoded. Its tokens are
// `first_token`, `first_token` - 1, …: negative, and of this content alone.
struct MediaLayout {
    llama_token first_token;
    int32_t n_tokens;   // rows of the embedding
    int32_t n_pos;      // positions that it takes: with M-RoPE fewer than tokens
    bool non_causal;    // all of its rows look at each other, so they are computed in one ubatch
    bool is_mrope;
    std::shared_ptr<const mtmd_input_chunk> shape; // without content; gives the positions of its rows

    // Returns whether a prefix may end inside: not where rows look ahead, or share a position.
    bool is_divisible() const noexcept { return !non_causal && n_pos == n_tokens && !is_mrope; }

    llama_token token(int32_t row) const noexcept { return first_token - row; }

    // The positions of `n_rows` rows from `row` on, if the first row of all is at `begin`: a section after the other, of
    // which M-RoPE has four.
    std::vector<llama_pos> positions(llama_pos begin, int32_t row, int32_t n_rows) const;
};

// The embedding of a picture: its rows of n_embd values.
using MediaRows = std::vector<float>;

// A layout with its content: first what is to be encoded, then the embedding. Any thread may ask.
class MediaChunk {
  public:
    MediaChunk(MediaLayout layout, std::shared_ptr<const mtmd_input_chunk> content, std::size_t content_bytes);

    const std::shared_ptr<const MediaLayout> & layout() const noexcept { return layout_; }

    // Null once it is encoded.
    std::shared_ptr<const mtmd_input_chunk> content() const;

    // Null before.
    std::shared_ptr<const MediaRows> rows() const;
    void set_rows(MediaRows rows);

    std::size_t n_bytes() const;

  private:
    std::shared_ptr<const MediaLayout> layout_;
    mutable std::mutex mutex_;
    std::shared_ptr<const mtmd_input_chunk> content_;
    std::size_t content_bytes_;
    std::shared_ptr<const MediaRows> rows_;
};

} // namespace pyllmcancel
