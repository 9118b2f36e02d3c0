#include "row_padding.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

constexpr int32_t ROWS = 4; // that a kernel multiplies at once
// A padding token looks at all that its sequence has, which must not cost more than it saves.
constexpr int32_t LONGEST_HISTORY = 512;

// Neighbouring seq_ids, which divided cells let compute in one graph.
struct Group {
    int32_t first;
    int32_t last;

    int32_t size() const noexcept { return last - first + 1; }
};

bool lacks_one(int32_t n_rows) { return n_rows % ROWS == ROWS - 1; }

// Reading the weights once for a row, or for two when it is for four; padded.
int32_t passes(int32_t n_rows) { return n_rows / ROWS * 2 + std::min(n_rows % ROWS, 2); }

int32_t passes(const std::vector<Group> & groups) {
    int32_t sum = 0;
    for (const Group & group : groups) {
        sum += passes(group.size());
    }
    return sum;
}

// Rows of one graph: one more goes to the end of the shortest sequence.
std::vector<PaddingToken> after_an_item(const std::vector<StepItem> & items, const PaddingRoom & room) {
    const auto end_of = [&](const StepItem & item) {
        return room.n_committed[static_cast<std::size_t>(item.seq)] + item.n_tokens;
    };
    const StepItem & shortest = *std::min_element(
        items.begin(), items.end(), [&](const StepItem & a, const StepItem & b) { return end_of(a) < end_of(b); });
    const int32_t pos = end_of(shortest);
    if (!lacks_one(n_tokens_of(items)) || room.n_free < 1 || pos >= room.n_ctx || pos > LONGEST_HISTORY) {
        return {};
    }
    return {{shortest.seq, pos}};
}

std::vector<Group> groups_of(const std::vector<int32_t> & seqs) {
    std::vector<Group> groups;
    for (const int32_t seq : seqs) {
        if (!groups.empty() && groups.back().last + 1 == seq) {
            groups.back().last = seq;
        } else {
            groups.push_back({seq, seq});
        }
    }
    return groups;
}

// One row of each sequence: neighbours of theirs that take no part get one, too.
std::vector<PaddingToken> between_items(const std::vector<StepItem> & items, const PaddingRoom & room) {
    std::vector<int32_t> seqs;
    for (const StepItem & item : items) {
        seqs.push_back(item.seq);
    }
    std::sort(seqs.begin(), seqs.end());
    const auto n_seqs = static_cast<int32_t>(room.n_committed.size());
    const auto is_usable = [&](int32_t seq) {
        if (seq < 0 || seq >= n_seqs || std::binary_search(seqs.begin(), seqs.end(), seq)) {
            return false;
        }
        const int32_t pos = room.n_committed[static_cast<std::size_t>(seq)];
        return pos < room.n_ctx && pos <= LONGEST_HISTORY;
    };
    std::vector<int32_t> added;
    std::vector<Group> groups = groups_of(seqs);
    const Group whole{seqs.front(), seqs.back()};
    if (groups.size() > 1 && passes(whole.size()) <= passes(groups)) {
        for (int32_t seq = whole.first; seq <= whole.last; ++seq) {
            if (!std::binary_search(seqs.begin(), seqs.end(), seq)) {
                added.push_back(seq);
            }
        }
        if (std::all_of(added.begin(), added.end(), is_usable)) {
            groups = {whole};
        } else {
            added.clear();
        }
    }
    for (const Group & group : groups) {
        const int32_t beside = is_usable(group.last + 1) ? group.last + 1 : group.first - 1;
        if (lacks_one(group.size()) && is_usable(beside) &&
            std::find(added.begin(), added.end(), beside) == added.end()) {
            added.push_back(beside);
        }
    }
    std::sort(added.begin(), added.end());
    std::vector<PaddingToken> padding;
    for (const int32_t seq : added) {
        padding.push_back({seq, room.n_committed[static_cast<std::size_t>(seq)]});
    }
    return padding;
}

} // namespace

std::vector<PaddingToken> padding_of(const std::vector<StepItem> & items, const PaddingRoom & room) {
    if (room.unified || items.size() == 1) {
        return after_an_item(items, room);
    }
    const auto is_decode = [](const StepItem & item) { return item.n_tokens == 1; };
    return std::all_of(items.begin(), items.end(), is_decode) ? between_items(items, room)
                                                              : std::vector<PaddingToken>{};
}

} // namespace pyllmcancel
