#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pyllmcancel {

// The hidden states of a sequence's last tokens, one row each, for the model's heads. There are none until one is put:
// they belong to the tokens from begin() to end(), and the oldest go if they are more than the limit.
class HiddenRows {
  public:
    int32_t begin() const noexcept { return begin_; }
    int32_t end() const noexcept { return end_; }

    // The state of one token, valid until the next change; null if there is none.
    const float * at(int32_t token) const noexcept;

    // Puts the state of a token. Unless it follows the last one, all others go. A null `row` stands for zeros.
    void put(int32_t token, const float * row, std::size_t width, int32_t limit);

    // Only the states of the first `n_tokens` tokens stay.
    void truncate(int32_t n_tokens) noexcept;

  private:
    std::size_t place(int32_t token) const noexcept;

    std::vector<float> rows_; // that of a token lies at its number modulo limit_
    std::size_t width_ = 0;
    int32_t limit_ = 1;
    int32_t begin_ = 0;
    int32_t end_ = 0;
};

} // namespace pyllmcancel
