#pragma once

#include <Python.h>

#include "errors.hpp"

#include <new>

namespace pyllmcancel {

// The Python exception classes, handed over once while the module is imported; the module keeps them alive.
struct PythonErrors {
    PyObject * model_load = nullptr;
    PyObject * load_cancelled = nullptr;
    PyObject * context = nullptr;
    PyObject * busy = nullptr;
    PyObject * usage = nullptr;
};

inline PythonErrors & python_errors() {
    static PythonErrors errors;
    return errors;
}

// Cython calls this, holding the GIL, inside the catch clause of every call declared `except +translate_exception`.
// The one place where C++ exceptions become Python's.
inline void translate_exception() {
    const PythonErrors & python = python_errors();
    if (PyErr_Occurred()) {
        return; // raised by Python code that C++ had called (the progress callback)
    }
    try {
        throw;
    } catch (const ModelLoadError & error) {
        PyErr_SetString(python.model_load, error.what());
    } catch (const LoadCancelled & error) {
        PyErr_SetString(python.load_cancelled, error.what());
    } catch (const ContextError & error) {
        PyErr_SetString(python.context, error.what());
    } catch (const ContextBusy & error) {
        PyErr_SetString(python.busy, error.what());
    } catch (const UsageError & error) {
        PyErr_SetString(python.usage, error.what());
    } catch (const std::bad_alloc & error) {
        PyErr_SetString(PyExc_MemoryError, error.what());
    } catch (const std::exception & error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
    }
}

} // namespace pyllmcancel
