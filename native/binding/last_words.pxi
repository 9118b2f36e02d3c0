# The notice before a failed assertion of ggml ends the process in the middle of a step.

from last_words cimport set_last_words

import weakref

# ggml has one callback for the process, so that all engines are told, whichever of them computed.
_engines = weakref.WeakSet()


cdef void say_last_words(const char * message) noexcept with gil:
    text = message.decode("utf-8", "replace")
    for engine in list(_engines):
        try:
            engine.end_all(text)
        except BaseException:  # the process ends in any case
            pass


set_last_words(<void (*)(const char *) noexcept nogil> say_last_words)


def tell_before_abort(engine):
    _engines.add(engine)
