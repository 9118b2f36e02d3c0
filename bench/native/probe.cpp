// The benchmarks' view of the core: what pyllmcancel._native does through Cython, done through pybind11, and the
// measurements that must not pass through Python at all. All that computes releases the GIL.

#include "backend_calls.hpp"
#include "step_driver.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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

void bind_values(py::module_ & module) {
    py::class_<Model, std::shared_ptr<Model>>(module, "Model")
        .def_static("load", load_model, "path"_a, py::kw_only(), "n_gpu_layers"_a = 0, without_gil())
        .def_property_readonly("n_vocab", [](const Model & model) { return llama_vocab_n_tokens(model.vocab()); });
    py::class_<probe::AbortTiming>(module, "AbortTiming")
        .def_readonly("aborted", &probe::AbortTiming::aborted)
        .def_readonly("latency_ns", &probe::AbortTiming::latency_ns);
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
    py::class_<StepRow>(module, "StepRow").def_property_readonly("token", [](const StepRow & row) {
        return row.sampled.empty() ? -1 : row.sampled.front().token;
    });
    py::class_<StepResult>(module, "StepResult")
        .def_readonly("status", &StepResult::status)
        .def_readonly("rows", &StepResult::rows);
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
    py::class_<StepDriver>(module, "StepDriver")
        .def(py::init(make), "model"_a, py::kw_only(), "n_ctx"_a, "n_seq_max"_a = 1, "n_batch"_a = 512,
             "n_threads"_a = 1, "abortable"_a = true, "kv_unified"_a = true, without_gil())
        .def("open", &StepDriver::open, "seq"_a, "tokens"_a, without_gil())
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
    bind_step_driver(module);
    bind_backend_calls(module);
}
