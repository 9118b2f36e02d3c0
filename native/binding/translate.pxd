from cpython.object cimport PyObject


cdef extern from "binding/translate.hpp" namespace "pyllmcancel" nogil:
    void translate_exception()

    cdef cppclass PythonErrors:
        PyObject * model_load
        PyObject * load_cancelled
        PyObject * context
        PyObject * busy
        PyObject * usage

    PythonErrors & python_errors()
