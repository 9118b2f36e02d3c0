#pragma once

#include "chat/chat_parser.hpp"
#include "chat/chat_template.hpp"
#include "model/model.hpp"
#include "sampling/sampler.hpp"
#include "step/context.hpp"
#include "step/embedder.hpp"

#ifdef PYLLMCANCEL_FAULTS
#include "platform/faults.hpp"
#endif

struct _object; // Python's PyObject

namespace pyllmcancel {

// Functions that Cython cannot express without taking the GIL: construction into smart pointers, and a closure.

inline Progress make_progress(bool (*call)(float, void *), void * user_data) {
    return [call, user_data](float fraction) { return call(fraction, user_data); };
}

inline std::unique_ptr<Context> make_context(std::shared_ptr<Model> model, const ContextParams & params) {
    return std::make_unique<Context>(std::move(model), params);
}

inline std::shared_ptr<Sampler> make_sampler(std::shared_ptr<Model> model, const SamplingParams & params,
                                             const std::shared_ptr<Sampler> & sibling) {
    return std::make_shared<Sampler>(std::move(model), params, sibling.get());
}

inline std::unique_ptr<Embedder> make_embedder(std::shared_ptr<Model> model, const EmbedderParams & params) {
    return std::make_unique<Embedder>(std::move(model), params);
}

inline std::unique_ptr<ChatTemplate> make_chat_template(const ChatTemplateSource & source) {
    return std::make_unique<ChatTemplate>(source);
}

inline std::shared_ptr<ChatParser> make_chat_parser(const std::string & form,
                                                    const std::shared_ptr<ChatParser> & sibling) {
    return std::make_shared<ChatParser>(sibling ? sibling->form() : std::make_shared<const ChatForm>(form));
}

// Builds for tests have further functions; -1 with a Python exception set if these cannot be added.
inline int add_test_functions([[maybe_unused]] _object * module) {
#ifdef PYLLMCANCEL_FAULTS
    return faults::add_to(module);
#else
    return 0;
#endif
}

} // namespace pyllmcancel
