from libcpp cimport bool as cbool
from libcpp.map cimport map
from libcpp.string cimport string

from translate cimport translate_exception


cdef extern from "chat_template.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass ChatTemplateSource:
        string source
        string tool_use
        string bos
        string eos
        cbool adds_bos
        cbool adds_eos

    cdef cppclass CppChatTemplate "pyllmcancel::ChatTemplate":
        map[string, cbool] caps() except +translate_exception
        string apply(const string & inputs) except +translate_exception
