from libcpp.string cimport string

from translate cimport translate_exception


cdef extern from "devices/cpu_backend.hpp" namespace "pyllmcancel" nogil:
    void set_backend_folder(const string & folder) except +translate_exception
    void load_backends() except +translate_exception
    string cpu_backend_file() except +translate_exception
