#include "platform/faults.hpp"

#include <Python.h>

#include "ggml.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>

namespace pyllmcancel::faults {
namespace {

constexpr int32_t throw_bad_alloc = 1000;
constexpr int32_t throw_runtime_error = 1001; // as a back end whose device is lost
constexpr int32_t fail_assertion = 1002;      // as a back end that checks what its driver says

constexpr std::array<std::string_view, static_cast<std::size_t>(Call::count)> names = {
    "load_model", "init_context", "start_threads", "tokenize",  "decode",    "encode",
    "sample",     "remove_cells", "state_size",    "state_get", "state_set", "pages"};

struct Plan {
    Call call = Call::count;
    long long nth = 0; // the first call that fails, from 1
    bool lasting = false;
    Fault fault{};
    long long n_calls = 0;
};

// Written by the test's thread, counted by the engine's; both under the mutex.
std::mutex mutex;
Plan plan;

PyObject * set_fault(PyObject * /*module*/, PyObject * arguments) {
    const char * name = nullptr;
    Plan wanted;
    int after = 0;
    int lasting = 0;
    if (!PyArg_ParseTuple(arguments, "sLi|pp", &name, &wanted.nth, &wanted.fault.code, &after, &lasting)) {
        return nullptr;
    }
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
        PyErr_Format(PyExc_ValueError, "no call is named %s", name);
        return nullptr;
    }
    wanted.call = static_cast<Call>(found - names.begin());
    wanted.fault.after = after != 0;
    wanted.lasting = lasting != 0;
    const std::lock_guard<std::mutex> lock(mutex);
    plan = wanted;
    Py_RETURN_NONE;
}

// Returns how many such calls there were: as many as the n-th says that it failed.
PyObject * clear_fault(PyObject * /*module*/, PyObject * /*arguments*/) {
    const std::lock_guard<std::mutex> lock(mutex);
    const long long n_calls = plan.n_calls;
    plan = Plan{};
    return PyLong_FromLongLong(n_calls);
}

std::array<PyMethodDef, 3> methods = {{
    {"set_fault", set_fault, METH_VARARGS,
     "set_fault(call, nth, code, after=False, lasting=False): pyllmcancel's fault injection, of test builds only."},
    {"clear_fault", clear_fault, METH_NOARGS,
     "Let all calls succeed; returns how many there were of the one that was to fail."},
    {nullptr, nullptr, 0, nullptr},
}};

} // namespace

std::optional<Fault> due(Call call) {
    std::unique_lock<std::mutex> lock(mutex);
    if (call != plan.call) {
        return std::nullopt;
    }
    ++plan.n_calls;
    if (plan.n_calls != plan.nth && !(plan.lasting && plan.n_calls > plan.nth)) {
        return std::nullopt;
    }
    if (plan.fault.code == throw_bad_alloc) {
        throw std::bad_alloc();
    }
    if (plan.fault.code == throw_runtime_error) {
        throw std::runtime_error("the device is lost");
    }
    if (plan.fault.code == fail_assertion) {
        lock.unlock();
        GGML_ABORT("the device is lost");
    }
    return plan.fault;
}

int add_to(PyObject * module) { return PyModule_AddFunctions(module, methods.data()); }

} // namespace pyllmcancel::faults
