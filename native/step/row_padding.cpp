#include "step/row_padding.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

constexpr int32_t ROWS = 4; // that a kernel multiplies at once
// A padding token looks at all that its sequence has, which must not cost more than it saves.
constexpr int32_t LONGEST_HISTORY = 512;

bool lacks_one(int32_t n_rows) { return n_rows % ROWS == ROWS - 1; }

// How often the weights are read, in the time that reading them for a single row takes.
int32_t cost_of(int32_t n_rows) { return n_rows / ROWS * 2 + n_rows % ROWS; }

// Rows of one graph: one more goes to the end of the shortest sequence.
std::vector<PaddingToken> after_an_item(const std::vector<StepItem> & items, const PaddingRoom & room) {
    if (!lacks_one(n_rows_of(items)) || room.n_free < 1) {
        return {};
    }
    PaddingToken found{-1, std::min(room.n_ctx, LONGEST_HISTORY + 1)};
    for (const StepItem & item : items) {
        const int32_t end = room.next_positions[static_cast<std::size_t>(item.seq)] + item.n_rows();
        if (end < found.pos) {
            found = {item.seq, end};
        }
    }
    return found.seq < 0 ? std::vector<PaddingToken>{} : std::vector<PaddingToken>{found};
}

// Neighbouring seq_ids, which divided cells let compute in one graph.
struct Group {
    int32_t first;
    int32_t last;

    int32_t size() const noexcept { return last - first + 1; }
};

// A way to compute one row of each of some sequences, with padding in others.
struct Plan {
    std::vector<Group> groups;
    std::vector<int32_t> padded;

    int32_t cost() const {
        int32_t sum = 0;
        for (const Group & group : groups) {
            sum += cost_of(group.size());
        }
        return sum;
    }
};

class Planner {
  public:
    Planner(const std::vector<StepItem> & items, const PaddingRoom & room) : room_(room) {
        for (const StepItem & item : items) {
            seqs_.push_back(item.seq);
        }
        std::sort(seqs_.begin(), seqs_.end());
    }

    Plan best() const {
        const Plan apart = filled_up({groups(), {}});
        if (apart.groups.size() < 2) {
            return apart;
        }
        Plan whole{{{seqs_.front(), seqs_.back()}}, gaps()};
        if (!std::all_of(whole.padded.begin(), whole.padded.end(),
                         [this](int32_t seq) { return can_be_padded(seq); })) {
            return apart;
        }
        whole = filled_up(std::move(whole));
        return whole.cost() <= apart.cost() ? whole : apart;
    }

  private:
    bool takes_part(int32_t seq) const { return std::binary_search(seqs_.begin(), seqs_.end(), seq); }

    bool can_be_padded(int32_t seq) const {
        if (seq < 0 || seq >= static_cast<int32_t>(room_.next_positions.size()) || takes_part(seq)) {
            return false;
        }
        const int32_t pos = room_.next_positions[static_cast<std::size_t>(seq)];
        return pos < room_.n_ctx && pos <= LONGEST_HISTORY;
    }

    std::vector<Group> groups() const {
        std::vector<Group> found;
        for (const int32_t seq : seqs_) {
            if (!found.empty() && found.back().last + 1 == seq) {
                found.back().last = seq;
            } else {
                found.push_back({seq, seq});
            }
        }
        return found;
    }

    std::vector<int32_t> gaps() const {
        std::vector<int32_t> found;
        for (int32_t seq = seqs_.front(); seq <= seqs_.back(); ++seq) {
            if (!takes_part(seq)) {
                found.push_back(seq);
            }
        }
        return found;
    }

    // Each group that lacks one gets it from a neighbour on either side.
    Plan filled_up(Plan plan) const {
        for (Group & group : plan.groups) {
            for (const int32_t beside : {group.last + 1, group.first - 1}) {
                const bool taken = std::find(plan.padded.begin(), plan.padded.end(), beside) != plan.padded.end();
                if (lacks_one(group.size()) && can_be_padded(beside) && !taken) {
                    plan.padded.push_back(beside);
                    group = {std::min(group.first, beside), std::max(group.last, beside)};
                }
            }
        }
        return plan;
    }

    const PaddingRoom & room_;
    std::vector<int32_t> seqs_; // of the items, sorted
};

} // namespace

std::vector<PaddingToken> padding_of(const std::vector<StepItem> & items, const PaddingRoom & room) {
    if (room.unified || items.size() == 1) {
        return after_an_item(items, room);
    }
    if (n_rows_of(items) > static_cast<int32_t>(items.size())) {
        return {}; // parts of several prompts, or drafts: a graph for each length anyway
    }
    std::vector<int32_t> padded = Planner(items, room).best().padded;
    std::sort(padded.begin(), padded.end());
    std::vector<PaddingToken> padding;
    for (const int32_t seq : padded) {
        padding.push_back({seq, room.next_positions[static_cast<std::size_t>(seq)]});
    }
    return padding;
}

} // namespace pyllmcancel
