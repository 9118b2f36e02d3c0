from libcpp.string cimport string

from translate cimport translate_exception


cdef extern from "grammar/grammar_check.hpp" namespace "pyllmcancel" nogil:
    void c_check_grammar "pyllmcancel::check_grammar"(const string & grammar) except +translate_exception
