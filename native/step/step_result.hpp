#pragma once

#include "sampling/sampler.hpp"
#include "step/step_runner.hpp"

#include <cstdint>
#include <vector>

namespace pyllmcancel {

struct StepRow {
    int32_t seq;
    int32_t n_tokens; // by which the sequence's committed tokens have grown
    LogitFault fault = LogitFault::none; // of the row of logits after those of `sampled`, or of a described token
    std::vector<Sampled> sampled; // that follow the known tokens: one more than was accepted of the draft
    std::vector<Sampled> described; // known tokens that this step's logits predict, in order
};

struct StepResult : StepOutcome {
    int64_t sample_us = 0;
    std::vector<StepRow> rows; // in the order of the items
    bool ahead = false;        // the step after this one has begun
};

} // namespace pyllmcancel
