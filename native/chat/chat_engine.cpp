// llama.cpp's own Jinja, as far as its chat layer calls it, with another engine behind it. Of its files only those that
// hold values are compiled. A template is one statement, which has its source; the variables are one value, their JSON.

#include "chat/chat_engine.hpp"

#include "jinja/caps.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"

#include <array>
#include <new>
#include <stdexcept>
#include <utility>

bool g_jinja_debug = false; // llama.cpp's

namespace pyllmcancel {
namespace {

thread_local const TemplateEngine * in_use = nullptr;

constexpr const char * VARIABLES = ""; // no variable of a template has this name

constexpr std::array<std::pair<const char *, bool jinja::caps::*>, 9> CAPS{{
    {"supports_string_content", &jinja::caps::supports_string_content},
    {"supports_typed_content", &jinja::caps::supports_typed_content},
    {"supports_tools", &jinja::caps::supports_tools},
    {"supports_tool_calls", &jinja::caps::supports_tool_calls},
    {"supports_parallel_tool_calls", &jinja::caps::supports_parallel_tool_calls},
    {"supports_system_role", &jinja::caps::supports_system_role},
    {"supports_preserve_reasoning", &jinja::caps::supports_preserve_reasoning},
    {"supports_reasoning_effort", &jinja::caps::supports_reasoning_effort},
    {"supports_object_arguments", &jinja::caps::supports_object_arguments},
}};

// Throws what reaches the caller of llama.cpp's chat layer in these words.
void check(TemplateEngine::Outcome outcome, const std::string & why) {
    switch (outcome) {
        case TemplateEngine::Outcome::done: return;
        case TemplateEngine::Outcome::refused: throw jinja::raised_exception(why);
        case TemplateEngine::Outcome::no_memory: throw std::bad_alloc();
    }
}

struct WholeTemplate : jinja::statement {
    TemplateEngine engine;
    std::string source;

    WholeTemplate(const TemplateEngine & engine, std::string source) : engine(engine), source(std::move(source)) {}

    std::string type() const override { return "WholeTemplate"; }

    jinja::value execute_impl(jinja::context & context) const override {
        std::string text;
        const std::string variables = context.get_val(VARIABLES)->as_string().str();
        check(engine.render(engine.object, source, variables, text), text);
        return jinja::mk_val<jinja::value_string>(text);
    }
};

void add_variables(jinja::context & context, const common_json & added) {
    const jinja::value known = context.get_val(VARIABLES);
    common_json all = known->is_undefined() ? common_json::object() : common_json::parse(known->as_string().str());
    for (const auto & [name, value] : added.items()) {
        all[name] = value;
    }
    context.set_val(VARIABLES, jinja::mk_val<jinja::value_string>(all.dump_safe()));
}

} // namespace

EngineInUse::EngineInUse(const TemplateEngine & engine) : before_(std::exchange(in_use, &engine)) {}

EngineInUse::~EngineInUse() { in_use = before_; }

} // namespace pyllmcancel

namespace jinja {

lexer_result lexer::tokenize(const std::string & source) { return {{}, source}; }

program parse_from_tokens(const lexer_result & lexed) {
    if (!pyllmcancel::in_use) {
        throw std::logic_error("no engine renders this template");
    }
    statements body;
    body.push_back(std::make_unique<pyllmcancel::WholeTemplate>(*pyllmcancel::in_use, lexed.source));
    return program(std::move(body));
}

value statement::execute(context & context) const { return execute_impl(context); }

template <> void global_from_json(context & context, const common_json & variables, bool /*mark_input*/) {
    pyllmcancel::add_variables(context, variables);
}

caps caps_get(program & program) {
    const auto & whole = static_cast<const pyllmcancel::WholeTemplate &>(*program.body.front());
    std::string json;
    pyllmcancel::check(whole.engine.caps(whole.engine.object, whole.source, json), json);
    const common_json found = common_json::parse(json);
    caps caps;
    for (const auto & [name, member] : pyllmcancel::CAPS) {
        caps.*member = found.at(name).get<bool>();
    }
    return caps;
}

std::map<std::string, bool> caps::to_map() const {
    std::map<std::string, bool> found;
    for (const auto & [name, member] : pyllmcancel::CAPS) {
        found[name] = this->*member;
    }
    return found;
}

void caps_apply_preserve_reasoning(context & context, bool enabled) {
    const common_json variables{
        {"preserve_thinking", enabled},
        {"clear_thinking", !enabled},
        {"truncate_history_thinking", !enabled},
        {"drop_thinking", !enabled},
    };
    pyllmcancel::add_variables(context, variables);
}

void caps_apply_reasoning_effort(context & context, const std::string & effort) {
    pyllmcancel::add_variables(context, common_json{{"reasoning_effort", effort}, {"reasoning_strength", effort}});
}

} // namespace jinja
