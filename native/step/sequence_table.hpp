#pragma once

#include "model/adapters.hpp"
#include "platform/errors.hpp"
#include "step/abort_gate.hpp"
#include "step/cancel_flag.hpp"
#include "step/step_items.hpp"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pyllmcancel {

// A seq_id of a Context or an Embedder.
struct Sequence {
    std::vector<llama_token> tokens; // all that are known
    int32_t n_committed = 0; // the first ones, whose cells are valid: computed by a step that returned ok, or copied
    bool open = false; // for a request
    std::shared_ptr<const CancelFlag> flag; // the request's
    AdapterScales adapters;   // of the tokens from `adapted_from` on; the tokens before are computed without any
    int32_t adapted_from = 0;

    int32_t n_known() const noexcept { return static_cast<int32_t>(tokens.size()); }
    int32_t n_pending() const noexcept { return n_known() - n_committed; }
};

// All sequences, by seq_id; S is a Sequence. Throws UsageError for an invalid request to one.
template <typename S> class SequenceTable {
  public:
    explicit SequenceTable(std::size_t n_seq_max) : sequences_(n_seq_max) {}

    int32_t size() const noexcept { return static_cast<int32_t>(sequences_.size()); }
    auto begin() noexcept { return sequences_.begin(); }
    auto end() noexcept { return sequences_.end(); }
    auto begin() const noexcept { return sequences_.begin(); }
    auto end() const noexcept { return sequences_.end(); }

    const S & at(int32_t seq) const {
        if (seq < 0 || seq >= size()) {
            throw UsageError("there is no sequence " + std::to_string(seq));
        }
        return sequences_[static_cast<std::size_t>(seq)];
    }
    S & at(int32_t seq) { return const_cast<S &>(static_cast<const SequenceTable &>(*this).at(seq)); }

    // Returns a sequence that has no request.
    S & idle(int32_t seq) {
        if (at(seq).open) {
            throw UsageError("sequence " + std::to_string(seq) + " is open");
        }
        return at(seq);
    }

    // See check_items(). `whole`: a sequence's tokens go into one step, all of them.
    void check(const std::vector<StepItem> & items, int32_t n_batch, bool whole) const {
        check_items(items, n_batch,
                    [this, whole](int32_t seq) { return Pending{at(seq).open, at(seq).n_pending(), whole}; });
    }

    std::vector<AbortGate::Member> members(const std::vector<StepItem> & items) const {
        std::vector<AbortGate::Member> members;
        for (const StepItem & item : items) {
            members.push_back({at(item.seq).flag.get(), item.n_rows()});
        }
        return members;
    }

    // The adapters that compute these items. Throws UsageError unless they are the same for all of the tokens.
    const AdapterScales & adapters_of(const std::vector<StepItem> & items) const {
        static const AdapterScales none;
        const AdapterScales * common = nullptr;
        for (const StepItem & item : items) {
            const S & sequence = at(item.seq);
            const bool begins_without = sequence.n_committed < sequence.adapted_from;
            const AdapterScales & own = begins_without ? none : sequence.adapters;
            if (begins_without && sequence.n_committed + item.n_rows() > sequence.adapted_from) {
                throw UsageError("the adapters of sequence " + std::to_string(item.seq) + " begin at token " +
                                 std::to_string(sequence.adapted_from) + ", within a step");
            }
            if (common && *common != own) {
                throw UsageError("a step computes with one set of adapters");
            }
            common = &own;
        }
        return common ? *common : none;
    }

  private:
    std::vector<S> sequences_;
};

} // namespace pyllmcancel
