#include "step_driver.hpp"

#include "clock.hpp"

#include <pybind11/stl.h>

namespace probe {

namespace py = pybind11;
using pyllmcancel::StepItem;
using pyllmcancel::StepResult;

StepDriver::StepDriver(const std::shared_ptr<pyllmcancel::Model> & model, const pyllmcancel::ContextParams & params)
    : model_(model), context_(model, params), flag_(std::make_shared<pyllmcancel::CancelFlag>()) {}

void StepDriver::open(int32_t seq, std::vector<llama_token> tokens) {
    pyllmcancel::SamplingParams greedy;
    greedy.temperature = 0.0F;
    context_.open(seq, std::move(tokens), std::make_shared<pyllmcancel::Sampler>(model_, greedy), flag_, {});
}

void StepDriver::close(int32_t seq, bool keep) { context_.close(seq, keep); }

py::object StepDriver::step(const py::iterable & items) {
    const int64_t called = now_ns();
    std::vector<StepItem> native;
    for (const py::handle item : items) {
        const auto [seq, n_tokens] = item.cast<std::pair<int32_t, int32_t>>();
        native.push_back({seq, n_tokens, {}});
    }
    StepResult result;
    hold_.before_ns = now_ns() - called;
    {
        const py::gil_scoped_release release;
        result = context_.step(native, {});
    }
    const int64_t regained = now_ns();
    py::object answer = py::cast(std::move(result));
    hold_.after_ns = now_ns() - regained;
    return answer;
}

int64_t StepDriver::bare_steps(const std::vector<StepItem> & items, int32_t count) {
    const int64_t begin = now_ns();
    for (int32_t i = 0; i < count; ++i) {
        context_.step(items, {});
    }
    return now_ns() - begin;
}

AbortTiming StepDriver::abort_after(const std::vector<StepItem> & items, int64_t delay_ns) {
    DelayedRaise raise(flag_, delay_ns);
    const StepResult result = context_.step(items, {});
    const int64_t end = now_ns();
    const int64_t raised = raise.finish();
    if (raised != 0) {
        // A flag cannot be lowered: sequences that are opened from now on get another.
        flag_ = std::make_shared<pyllmcancel::CancelFlag>();
    }
    return {result.status == pyllmcancel::StepStatus::aborted, end - raised};
}

} // namespace probe
