#pragma once

#include <cstdint>
#include <vector>

namespace pyllmcancel {

// Counts the cells that sequences have in common. They share cells only from the first on, so the sequences are paths
// from the root of a tree whose nodes are cells.
//
// The paths are kept in the order of a walk over the tree. In this order any two of them have in common what all
// neighbours between them have, so that only neighbours are remembered.
class SharedCells {
  public:
    void resize(std::size_t n_sequences);

    // Notes that `to` holds the first `n_cells` cells of `from` now, and nothing else.
    void share(int32_t from, int32_t to, int32_t n_cells);

    // Notes that `seq` holds only its first `n_cells` cells now: later cells are its own.
    void truncate(int32_t seq, int32_t n_cells);

    // The number of cells that `seqs` hold together, `lengths[seq]` each; cells that several hold count once.
    int32_t count(const std::vector<int32_t> & seqs, const std::vector<int32_t> & lengths) const;

    // The number of cells that all sequences hold together.
    int32_t count(const std::vector<int32_t> & lengths) const;

  private:
    struct Path {
        int32_t seq;
        int32_t n_common; // cells, with the path before this one
    };
    using Iterator = std::vector<Path>::iterator;

    Iterator find(int32_t seq);
    void take_out(Iterator place);

    std::vector<Path> paths_;
};

} // namespace pyllmcancel
