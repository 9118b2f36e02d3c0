#include "shared_cells.hpp"

#include <algorithm>

namespace pyllmcancel {

void SharedCells::resize(std::size_t n_sequences) {
    n_sequences_ = n_sequences;
    common_.assign(n_sequences * (n_sequences + 1) / 2, 0);
}

std::size_t SharedCells::index(int32_t a, int32_t b) const {
    const auto high = static_cast<std::size_t>(std::max(a, b));
    const auto low = static_cast<std::size_t>(std::min(a, b));
    return high * (high + 1) / 2 + low;
}

void SharedCells::share(int32_t from, int32_t to, int32_t n_cells) {
    for (int32_t other = 0; other < static_cast<int32_t>(n_sequences_); ++other) {
        if (other != to) {
            common(to, other) = other == from ? n_cells : std::min(n_cells, common(from, other));
        }
    }
}

void SharedCells::truncate(int32_t seq, int32_t n_cells) {
    for (int32_t other = 0; other < static_cast<int32_t>(n_sequences_); ++other) {
        common(seq, other) = std::min(common(seq, other), n_cells);
    }
}

int32_t SharedCells::count(const std::vector<int32_t> & seqs, const std::vector<int32_t> & lengths) const {
    int32_t n_cells = 0;
    for (auto seq = seqs.begin(); seq != seqs.end(); ++seq) {
        int32_t n_counted = 0;
        for (auto before = seqs.begin(); before != seq; ++before) {
            n_counted = std::max(n_counted, *before == *seq ? lengths[static_cast<std::size_t>(*seq)]
                                                            : common_[index(*seq, *before)]);
        }
        n_cells += lengths[static_cast<std::size_t>(*seq)] - n_counted;
    }
    return n_cells;
}

} // namespace pyllmcancel
