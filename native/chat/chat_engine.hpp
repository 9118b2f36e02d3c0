#pragma once

#include <string>

namespace pyllmcancel {

// The engine that renders templates: jinja_engine.py. llama.cpp's chat layer analyses a template by rendering it, and
// so analyses the text that is really rendered.
struct TemplateEngine {
    enum class Outcome { done, refused, no_memory };

    void * object = nullptr; // kept alive by whoever has made the template
    Outcome (*render)(void * object, const std::string & source, const std::string & variables,
                      std::string & text) = nullptr;
    Outcome (*caps)(void * object, const std::string & source, std::string & json) = nullptr;
};

// While this lives, templates that this thread compiles belong to this engine: llama.cpp's constructors have no
// argument for it.
class EngineInUse {
  public:
    explicit EngineInUse(const TemplateEngine & engine);
    ~EngineInUse();
    EngineInUse(const EngineInUse &) = delete;
    EngineInUse & operator=(const EngineInUse &) = delete;

  private:
    const TemplateEngine * before_;
};

} // namespace pyllmcancel
