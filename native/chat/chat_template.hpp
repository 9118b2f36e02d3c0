#pragma once

#include "chat/chat_engine.hpp"

#include <map>
#include <memory>
#include <string>

namespace pyllmcancel {

struct ChatTemplateSource {
    std::string source; // Jinja
    std::string bos;
    std::string eos;
    TemplateEngine engine;
    bool adds_bos = false; // the tokenizer does, so the template must not
    bool adds_eos = false;
};

// A model's chat template: rendered by an engine, analysed by llama.cpp. Immutable, but only one thread may use the
// engine. There is no limit on the time, the memory and the stack that a template takes: it belongs into a process of
// its own.
class ChatTemplate {
  public:
    // Throws UsageError for a template that cannot be compiled.
    explicit ChatTemplate(const ChatTemplateSource & source);
    ~ChatTemplate();
    ChatTemplate(const ChatTemplate &) = delete;
    ChatTemplate & operator=(const ChatTemplate &) = delete;

    // The template's capabilities, under llama.cpp's names.
    std::map<std::string, bool> caps() const;

    // Renders a conversation: JSON to JSON, as _native.pyi says. Throws UsageError with llama.cpp's words.
    std::string apply(const std::string & inputs) const;

  private:
    struct Form;
    struct Compiled;
    std::unique_ptr<Compiled> compiled_;
};

} // namespace pyllmcancel
