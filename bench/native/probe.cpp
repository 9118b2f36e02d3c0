// The benchmarks' view of the core: what pyllmcancel._native does through Cython, done through pybind11, and the
// measurements that must not pass through Python at all. All that computes releases the GIL.

#include "backend_calls.hpp"
#include "clock.hpp"
#include "raw_decoder.hpp"
#include "sampling_cost.hpp"
#include "step/abort_gate.hpp"
#include "step_driver.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <deque>
#include <optional>

namespace py = pybind11;
using namespace py::literals;
using namespace pyllmcancel;
using without_gil = py::call_guard<py::gil_scoped_release>;

namespace {

using Items = std::vector<std::pair<int32_t, int32_t>>;

std::vector<StepItem> step_items(const Items & pairs) {
    std::vector<StepItem> items;
    for (const auto & [seq, n_tokens] : pairs) {
        items.push_back({seq, n_tokens, {}});
    }
    return items;
}

std::shared_ptr<Model> load_model(const std::string & path, int32_t n_gpu_layers) {
    ModelParams params;
    params.require_vocabulary = false;
    params.placement.n_gpu_layers = n_gpu_layers;
    return Model::load(path, params, {});
}

// Nanoseconds that one question of ggml costs while no request is cancelled, by the number of sequences in the step.
double poll_ns(int32_t n_members, int32_t n_polls) {
    const std::deque<CancelFlag> flags(static_cast<std::size_t>(n_members));
    std::vector<AbortGate::Member> members;
    for (const CancelFlag & flag : flags) {
        members.push_back({&flag, 1});
    }
    AbortGate gate;
    const AbortGate::Ticket ticket = gate.arm({}, std::move(members), false, {1, 0});
    // Through a pointer that the compiler cannot see through, as ggml calls it.
    bool (*volatile ask)(void *) = AbortGate::poll;
    const int64_t begin = probe::now_ns();
    for (int32_t i = 0; i < n_polls; ++i) {
        ask(&gate);
    }
    return static_cast<double>(probe::now_ns() - begin) / n_polls;
}

SamplingParams sampling_params(float temperature, int32_t top_k, float top_p, float min_p, uint32_t seed,
                               int32_t n_logprobs, const std::string & grammar,
                               const std::vector<std::string> & samplers) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = top_k;
    params.top_p = top_p;
    params.min_p = min_p;
    params.seed = seed;
    params.n_logprobs = n_logprobs;
    params.grammar = grammar;
    params.samplers = samplers;
    return params;
}

void bind_values(py::module_ & module) {
    py::class_<Model, std::shared_ptr<Model>>(module, "Model")
        .def_static("load", load_model, "path"_a, py::kw_only(), "n_gpu_layers"_a = 0, without_gil())
        .def_property_readonly("n_vocab", [](const Model & model) { return llama_vocab_n_tokens(model.vocab()); })
        .def_property_readonly("n_layer", [](const Model & model) { return llama_model_n_layer(model.handle()); });
    py::class_<SamplingParams>(module, "SamplingParams")
        .def(py::init(&sampling_params), py::kw_only(), "temperature"_a = 0.0F, "top_k"_a = 40, "top_p"_a = 0.95F,
             "min_p"_a = 0.05F, "seed"_a = 1, "n_logprobs"_a = -1, "grammar"_a = "",
             "samplers"_a = std::vector<std::string>{});
    py::class_<probe::AbortTiming>(module, "AbortTiming")
        .def_readonly("aborted", &probe::AbortTiming::aborted)
        .def_readonly("latency_ns", &probe::AbortTiming::latency_ns)
        .def_readonly("total_ns", &probe::AbortTiming::total_ns)
        .def_readonly("polls", &probe::AbortTiming::polls);
    py::class_<probe::GilHold>(module, "GilHold")
        .def_readonly("before_ns", &probe::GilHold::before_ns)
        .def_readonly("after_ns", &probe::GilHold::after_ns);
    py::enum_<StepStatus>(module, "StepStatus")
        .value("OK", StepStatus::ok)
        .value("ABORTED", StepStatus::aborted)
        .value("NO_ROOM", StepStatus::no_room)
        .value("INVALID", StepStatus::invalid)
        .value("FAILED_ALLOC", StepStatus::failed_alloc)
        .value("FAILED_COMPUTE", StepStatus::failed_compute);
    py::class_<StepRow>(module, "StepRow")
        .def_readonly("seq", &StepRow::seq)
        .def_readonly("n_tokens", &StepRow::n_tokens)
        .def_property_readonly(
            "token", [](const StepRow & row) { return row.sampled.empty() ? -1 : row.sampled.front().token; });
    py::class_<StepResult>(module, "StepResult")
        .def_readonly("status", &StepResult::status)
        .def_readonly("rows", &StepResult::rows)
        .def_readonly("polls", &StepResult::polls)
        .def_readonly("decode_us", &StepResult::decode_us)
        .def_readonly("sample_us", &StepResult::sample_us);
}

void bind_raw_decoder(py::module_ & module) {
    using probe::Callback;
    using probe::RawDecoder;
    using probe::RawParams;
    py::enum_<Callback>(module, "Callback").value("NONE", Callback::none).value("GATE", Callback::gate);
    const auto make = [](const std::shared_ptr<Model> & model, uint32_t n_ctx, uint32_t n_seq_max, uint32_t n_batch,
                         std::optional<uint32_t> n_ubatch, int32_t n_threads, bool kv_unified, int32_t flash_attention,
                         int32_t poll, uint32_t n_outputs) {
        return std::make_unique<RawDecoder>(model, RawParams{n_ctx, n_seq_max, n_batch, n_ubatch.value_or(n_batch),
                                                             n_threads, kv_unified, flash_attention, poll, n_outputs});
    };
    const auto decode = [](RawDecoder & raw, const Items & items, Callback callback) {
        return raw.decode(step_items(items), callback);
    };
    const auto node_times = [](RawDecoder & raw, const Items & items) { return raw.node_times(step_items(items)); };
    const auto abort_after = [](RawDecoder & raw, const Items & items, int64_t delay_ns) {
        return raw.abort_after(step_items(items), delay_ns);
    };
    const auto abort_at = [](RawDecoder & raw, const Items & items, uint32_t node) {
        return raw.abort_at(step_items(items), node);
    };
    py::class_<RawDecoder>(module, "RawDecoder")
        .def(py::init(make), "model"_a, py::kw_only(), "n_ctx"_a, "n_seq_max"_a = 1, "n_batch"_a = 512,
             "n_ubatch"_a = py::none(), "n_threads"_a = 1, "kv_unified"_a = true, "flash_attention"_a = -1,
             "poll"_a = 0, "n_outputs"_a = 0, without_gil())
        .def("clear", &RawDecoder::clear, without_gil())
        .def("decode", decode, "items"_a, "callback"_a = Callback::none, without_gil())
        .def("node_times", node_times, "items"_a, without_gil())
        .def("abort_after", abort_after, "items"_a, "delay_ns"_a, without_gil())
        .def("abort_at", abort_at, "items"_a, "node"_a, without_gil());
}

void bind_step_driver(py::module_ & module) {
    using probe::StepDriver;
    const auto make = [](const std::shared_ptr<Model> & model, uint32_t n_ctx, uint32_t n_seq_max, uint32_t n_batch,
                         int32_t n_threads, bool abortable, bool kv_unified) {
        ContextParams params;
        params.n_ctx = n_ctx;
        params.n_seq_max = n_seq_max;
        params.n_batch = n_batch;
        params.n_threads = n_threads;
        params.n_threads_batch = n_threads;
        params.abortable = abortable;
        params.kv_unified = kv_unified;
        return std::make_unique<StepDriver>(model, params);
    };
    const auto bare_steps = [](StepDriver & driver, const Items & items, int32_t count) {
        return driver.bare_steps(step_items(items), count);
    };
    const auto abort_after = [](StepDriver & driver, const Items & items, int64_t delay_ns) {
        return driver.abort_after(step_items(items), delay_ns);
    };
    SamplingParams greedy;
    greedy.temperature = 0.0F;
    py::class_<StepDriver>(module, "StepDriver")
        .def(py::init(make), "model"_a, py::kw_only(), "n_ctx"_a, "n_seq_max"_a = 1, "n_batch"_a = 512,
             "n_threads"_a = 1, "abortable"_a = true, "kv_unified"_a = true, without_gil())
        .def("open", &StepDriver::open, "seq"_a, "tokens"_a, "sampling"_a = greedy, without_gil())
        .def("close", &StepDriver::close, "seq"_a, py::kw_only(), "keep"_a, without_gil())
        .def("step", &StepDriver::step, "items"_a)
        .def("last_hold", &StepDriver::last_hold)
        .def("bare_steps", bare_steps, "items"_a, "count"_a, without_gil())
        .def("abort_after", abort_after, "items"_a, "delay_ns"_a, without_gil());
}

py::dict as_dict(const probe::BackendCalls & calls) {
    return py::dict("launches"_a = calls.launches, "synchronizations"_a = calls.synchronizations,
                    "writes"_a = calls.writes, "written_bytes"_a = calls.written_bytes, "reads"_a = calls.reads,
                    "read_bytes"_a = calls.read_bytes, "copies"_a = calls.copies);
}

void bind_backend_calls(py::module_ & module) {
    module.def("count_backend_calls", probe::count_backend_calls);
    module.def("device_calls", [] { return as_dict(probe::device_calls()); });
    module.def("host_calls", [] { return as_dict(probe::host_calls()); });
}

} // namespace

PYBIND11_MODULE(pyllmcancel_probe, module) {
    bind_values(module);
    bind_raw_decoder(module);
    bind_step_driver(module);
    bind_backend_calls(module);
    module.def("poll_ns", poll_ns, "n_members"_a, "n_polls"_a, without_gil());
    module.def("sampler_times", probe::sampler_times, "model"_a, "params"_a, "logits"_a, "count"_a, without_gil());
    module.def("chain_times", probe::chain_times, "model"_a, "params"_a, "logits"_a, "count"_a, without_gil());
}
