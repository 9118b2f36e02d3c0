from libcpp.memory cimport unique_ptr
from libcpp.string cimport string

from chat_template cimport ChatTemplateSource, CppChatTemplate
from factories cimport make_chat_template


cdef class ChatTemplate:
    """One model's chat template, compiled by llama.cpp's Jinja; immutable, any thread."""

    cdef unique_ptr[CppChatTemplate] c_obj
    cdef readonly dict caps

    def __cinit__(self, str source not None, str bos="", str eos="", *, str tool_use_source="", bint adds_bos=False,
                  bint adds_eos=False):
        cdef ChatTemplateSource c_source
        c_source.source = source.encode()
        c_source.tool_use = tool_use_source.encode()
        c_source.bos = bos.encode()
        c_source.eos = eos.encode()
        c_source.adds_bos = adds_bos
        c_source.adds_eos = adds_eos
        try:
            with nogil:
                self.c_obj = make_chat_template(c_source)
        except errors.UsageError as error:
            raise errors.InvalidRequestError(str(error)) from None
        self.caps = {name.decode(): value for name, value in self.c_obj.get().caps()}

    def apply(self, bytes inputs not None):
        cdef string c_inputs = inputs
        cdef string rendered
        try:
            with nogil:
                rendered = self.c_obj.get().apply(c_inputs)
        except errors.UsageError as error:
            raise errors.InvalidRequestError(str(error), "messages") from None
        return <bytes> rendered
