from libcpp cimport bool as cbool
from libcpp.map cimport map
from libcpp.string cimport string

from translate cimport translate_exception


cdef extern from "chat/chat_engine.hpp" namespace "pyllmcancel" nogil:
    cdef enum class Outcome "pyllmcancel::TemplateEngine::Outcome":
        done
        refused
        no_memory

    cdef cppclass TemplateEngine:
        void * object
        Outcome (*render)(void * object, const string & source, const string & variables, string & text) noexcept nogil
        Outcome (*caps)(void * object, const string & source, string & json) noexcept nogil


cdef extern from "chat/chat_template.hpp" namespace "pyllmcancel" nogil:
    cdef cppclass ChatTemplateSource:
        string source
        string bos
        string eos
        TemplateEngine engine
        cbool adds_bos
        cbool adds_eos

    cdef cppclass CppChatTemplate "pyllmcancel::ChatTemplate":
        map[string, cbool] caps() except +translate_exception
        string apply(const string & inputs) except +translate_exception
