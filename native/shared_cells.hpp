#pragma once

#include <cstdint>
#include <vector>

namespace pyllmcancel {

// How many cells sequences have in common. They share cells only from the first on, so that what two of them have in
// common is one leading part: the sequences are paths from the root of a tree whose nodes are cells.
class SharedCells {
  public:
    void resize(std::size_t n_sequences);

    // `to`, which held nothing, holds the first `n_cells` cells of `from` now.
    void share(int32_t from, int32_t to, int32_t n_cells);

    // `seq` holds no more than its first `n_cells` cells now: what it computes after them is its own.
    void truncate(int32_t seq, int32_t n_cells);

    // Cells that `seqs` hold together, `lengths[seq]` each; those that several hold count once.
    int32_t count(const std::vector<int32_t> & seqs, const std::vector<int32_t> & lengths) const;

  private:
    int32_t & common(int32_t a, int32_t b) { return common_[index(a, b)]; }
    std::size_t index(int32_t a, int32_t b) const;

    std::size_t n_sequences_ = 0;
    std::vector<int32_t> common_; // of each pair; a triangle
};

} // namespace pyllmcancel
