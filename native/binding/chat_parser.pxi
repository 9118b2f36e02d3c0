from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from chat_parser cimport ChatPart, ChatPartKind, CppChatParser
from factories cimport make_chat_parser
from json_size cimport string_view


cdef tuple part_tuple(const ChatPart & part):
    text = part.text.decode("utf-8", "replace")
    if part.kind == ChatPartKind.reasoning:
        return "reasoning", text
    if part.kind == ChatPartKind.content:
        return "content", text
    if part.kind == ChatPartKind.call:
        return "call", part.index, text, part.id.decode("utf-8", "replace")
    return "arguments", part.index, text


cdef class ChatParser:
    """Parses one answer while it streams. One thread at a time."""

    cdef shared_ptr[CppChatParser] c_obj

    def __cinit__(self, bytes form not None, ChatParser sibling=None):
        cdef string c_form = form
        cdef shared_ptr[CppChatParser] c_sibling
        if sibling is not None:
            c_sibling = sibling.c_obj
        with nogil:
            self.c_obj = make_chat_parser(c_form, c_sibling)

    @property
    def n_calls(self):
        return self.c_obj.get().n_calls()

    def feed(self, str text not None, bint final=False):
        cdef vector[ChatPart] parts
        cdef bytes encoded = text.encode("utf-8", "replace")
        cdef string_view view = string_view(encoded, len(encoded))
        with nogil:
            parts = self.c_obj.get().feed(view, final)
        return [part_tuple(part) for part in parts]
