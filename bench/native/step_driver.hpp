#pragma once

#include "abort_timing.hpp"
#include "step/context.hpp"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace probe {

// Nanoseconds that step() held the GIL, before and after the computation.
struct GilHold {
    int64_t before_ns = 0;
    int64_t after_ns = 0;
};

// The core's Context through pybind11, for comparing with pyllmcancel._native, which is the same through Cython.
class StepDriver {
  public:
    StepDriver(const std::shared_ptr<pyllmcancel::Model> & model, const pyllmcancel::ContextParams & params);

    void open(int32_t seq, std::vector<llama_token> tokens); // chooses greedily
    void close(int32_t seq, bool keep);

    // One step with the GIL released, from (seq, n_tokens) pairs as pyllmcancel._native takes them; returns a StepResult.
    pybind11::object step(const pybind11::iterable & items);
    GilHold last_hold() const noexcept { return hold_; }

    // The same step `count` times, with nothing of Python in between; nanoseconds for all of them.
    int64_t bare_steps(const std::vector<pyllmcancel::StepItem> & items, int32_t count);

    // Raise the flag of every open sequence some time after the step began. Close the sequences afterwards: they have
    // been cancelled.
    AbortTiming abort_after(const std::vector<pyllmcancel::StepItem> & items, int64_t delay_ns);

  private:
    std::shared_ptr<pyllmcancel::Model> model_;
    pyllmcancel::Context context_;
    std::shared_ptr<pyllmcancel::CancelFlag> flag_;
    GilHold hold_;
};

} // namespace probe
