#include "cells/shared_cells.hpp"

#include <algorithm>
#include <limits>

namespace pyllmcancel {

void SharedCells::resize(std::size_t n_sequences) {
    paths_.clear();
    for (std::size_t seq = 0; seq < n_sequences; ++seq) {
        paths_.push_back({static_cast<int32_t>(seq), 0});
    }
}

SharedCells::Iterator SharedCells::find(int32_t seq) {
    return std::find_if(paths_.begin(), paths_.end(), [seq](const Path & path) { return path.seq == seq; });
}

// Paths on both sides have in common what each has in common with this one.
void SharedCells::take_out(Iterator place) {
    const auto next = place + 1;
    if (next != paths_.end()) {
        next->n_common = std::min(next->n_common, place->n_common);
    }
    paths_.erase(place);
}

// After all paths that have as much in common with `from`: between two of them it would hide what they have in common.
void SharedCells::share(int32_t from, int32_t to, int32_t n_cells) {
    take_out(find(to));
    auto place = find(from) + 1;
    while (place != paths_.end() && place->n_common >= n_cells) {
        ++place;
    }
    paths_.insert(place, {to, n_cells});
}

void SharedCells::truncate(int32_t seq, int32_t n_cells) {
    const auto place = find(seq);
    const int32_t before = place->n_common;
    const int32_t after = place + 1 != paths_.end() ? (place + 1)->n_common : 0;
    if (std::max(before, after) > n_cells) {
        share(before > after ? (place - 1)->seq : (place + 1)->seq, seq, n_cells);
    }
}

int32_t SharedCells::count(const std::vector<int32_t> & seqs, const std::vector<int32_t> & lengths) const {
    std::vector<bool> is_counted(lengths.size(), false);
    for (const int32_t seq : seqs) {
        is_counted[static_cast<std::size_t>(seq)] = true;
    }
    int32_t n_cells = 0;
    int32_t n_common = 0; // with the last path that was counted
    for (const Path & path : paths_) {
        const auto seq = static_cast<std::size_t>(path.seq);
        n_common = std::min(n_common, path.n_common);
        if (is_counted[seq]) {
            n_cells += lengths[seq] - n_common;
            n_common = std::numeric_limits<int32_t>::max();
        }
    }
    return n_cells;
}

int32_t SharedCells::count(const std::vector<int32_t> & lengths) const {
    int32_t n_cells = 0;
    for (const Path & path : paths_) {
        n_cells += lengths[static_cast<std::size_t>(path.seq)] - path.n_common;
    }
    return n_cells;
}

} // namespace pyllmcancel
