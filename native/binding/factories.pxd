from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string

from chat_parser cimport CppChatParser
from chat_template cimport ChatTemplateSource, CppChatTemplate
from context cimport ContextParams, CppContext
from embedder cimport CppEmbedder, EmbedderParams
from model cimport CppModel, Progress
from sampler cimport CppSampler, CppSamplingParams
from translate cimport translate_exception


cdef extern from "binding/factories.hpp" namespace "pyllmcancel" nogil:
    Progress make_progress(cbool (*call)(float, void *) noexcept nogil, void * user_data)
    shared_ptr[CppSampler] make_sampler(
        shared_ptr[CppModel] model, const CppSamplingParams & params, const shared_ptr[CppSampler] & sibling
    ) except +translate_exception
    unique_ptr[CppContext] make_context(
        shared_ptr[CppModel] model, const ContextParams & params
    ) except +translate_exception
    unique_ptr[CppEmbedder] make_embedder(
        shared_ptr[CppModel] model, const EmbedderParams & params
    ) except +translate_exception
    unique_ptr[CppChatTemplate] make_chat_template(const ChatTemplateSource & source) except +translate_exception
    shared_ptr[CppChatParser] make_chat_parser(
        const string & form, const shared_ptr[CppChatParser] & sibling
    ) except +translate_exception


cdef extern from "binding/factories.hpp" namespace "pyllmcancel":
    int add_test_functions(object module) except -1
