from libcpp.string cimport string

from grammar_check cimport c_check_grammar


def check_grammar(str grammar not None):
    cdef string text = grammar.encode()
    with nogil:
        c_check_grammar(text)
