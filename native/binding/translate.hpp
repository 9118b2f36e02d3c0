#pragma once

#include <Python.h>

#include "platform/errors.hpp"

#include <new>
#include <string_view>

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

// An error message may quote a file, which need not be UTF-8.
inline void raise_python(PyObject * error_class, const std::exception & error) {
    const std::string_view what = error.what();
    PyObject * text = PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "backslashreplace");
    if (text) { // else MemoryError is set
        PyErr_SetObject(error_class, text);
        Py_DECREF(text);
    }
}

// Cython calls this, holding the GIL, inside the catch clause of every call declared `except +translate_exception`.
// Nothing else makes Python exceptions of C++ ones.
inline void translate_exception() {
    const PythonErrors & python = python_errors();
    try {
        throw;
    } catch (const ModelLoadError & error) {
        raise_python(python.model_load, error);
    } catch (const LoadCancelled & error) {
        raise_python(python.load_cancelled, error);
    } catch (const ContextError & error) {
        raise_python(python.context, error);
    } catch (const ContextBusy & error) {
        raise_python(python.busy, error);
    } catch (const UsageError & error) {
        raise_python(python.usage, error);
    } catch (const std::bad_alloc & error) {
        raise_python(PyExc_MemoryError, error);
    } catch (const std::exception & error) {
        raise_python(PyExc_RuntimeError, error);
    }
}

} // namespace pyllmcancel
