from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from json_size cimport string_view
from translate cimport translate_exception


cdef extern from "chat/chat_parser.hpp" namespace "pyllmcancel" nogil:
    cdef enum class ChatPartKind "pyllmcancel::ChatPart::Kind"(int32_t):
        reasoning
        content
        call
        arguments

    cdef cppclass ChatPart:
        ChatPartKind kind
        int32_t index
        string text
        string id

    cdef cppclass CppChatParser "pyllmcancel::ChatParser":
        vector[ChatPart] feed(string_view text, cbool final) except +translate_exception
        int32_t n_calls()
