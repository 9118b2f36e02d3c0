import json

from libcpp.memory cimport unique_ptr
from libcpp.string cimport string

from chat_template cimport ChatTemplateSource, CppChatTemplate, Outcome
from factories cimport make_chat_template


cdef Outcome render_by_engine(void * engine, const string & source, const string & variables,
                              string & text) noexcept with gil:
    try:
        (&text)[0] = (<object> engine).render(source.decode(), variables.decode()).encode("utf-8", "replace")
        return Outcome.done
    except BaseException as error:  # a C++ frame lies between
        return said_by_engine(error, text)


cdef Outcome caps_by_engine(void * engine, const string & source, string & found) noexcept with gil:
    try:
        (&found)[0] = json.dumps((<object> engine).caps(source.decode())).encode()
        return Outcome.done
    except BaseException as error:
        return said_by_engine(error, found)


cdef Outcome said_by_engine(object error, string & text):
    if isinstance(error, MemoryError):
        return Outcome.no_memory
    (&text)[0] = (str(error) or type(error).__name__).encode("utf-8", "replace")
    return Outcome.refused


cdef class ChatTemplate:
    """One model's chat template: rendered by an engine, analysed by llama.cpp. One thread at a time."""

    cdef unique_ptr[CppChatTemplate] c_obj
    cdef object engine  # c_obj calls it
    cdef readonly dict caps

    def __cinit__(self, str source not None, object engine not None, str bos="", str eos="", *, bint adds_bos=False,
                  bint adds_eos=False):
        cdef ChatTemplateSource c_source
        self.engine = engine
        c_source.source = source.encode("utf-8", "replace")
        c_source.bos = bos.encode()
        c_source.eos = eos.encode()
        c_source.engine.object = <void *> engine
        c_source.engine.render = render_by_engine
        c_source.engine.caps = caps_by_engine
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
