#include "step/step_items.hpp"

#include "platform/errors.hpp"

#include <algorithm>
#include <string>

namespace pyllmcancel {

int32_t n_rows_of(const std::vector<StepItem> & items) noexcept {
    int32_t sum = 0;
    for (const StepItem & item : items) {
        sum += item.n_rows();
    }
    return sum;
}

void check_items(const std::vector<StepItem> & items, int32_t n_batch,
                 const std::function<Pending(int32_t)> & pending_of) {
    int64_t n_tokens = 0;
    std::vector<int32_t> seen;
    for (const StepItem & item : items) {
        const Pending pending = pending_of(item.seq);
        if (!pending.open || item.n_tokens < 1 || item.n_tokens > pending.n_tokens ||
            (pending.whole && item.n_tokens != pending.n_tokens)) {
            throw UsageError("sequence " + std::to_string(item.seq) + " has " + std::to_string(pending.n_tokens) +
                             " tokens to compute, not " + std::to_string(item.n_tokens) +
                             (pending.whole ? " (this model takes a text whole)" : ""));
        }
        if (!item.draft.empty() && (pending.whole || item.n_tokens != pending.n_tokens)) {
            throw UsageError("the draft of sequence " + std::to_string(item.seq) + " does not follow its known tokens");
        }
        if (std::find(seen.begin(), seen.end(), item.seq) != seen.end()) {
            throw UsageError("sequence " + std::to_string(item.seq) + " stands twice in one step");
        }
        seen.push_back(item.seq);
        n_tokens += item.n_rows();
    }
    if (n_tokens < 1 || n_tokens > n_batch) {
        throw UsageError("a step computes 1 to " + std::to_string(n_batch) + " tokens, not " +
                         std::to_string(n_tokens));
    }
}

} // namespace pyllmcancel
