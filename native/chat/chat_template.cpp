#include "chat/chat_template.hpp"

#include "platform/errors.hpp"
#include "platform/json_size.hpp"

// The source, not the header: what holds a model's templates, and what prepares messages for them, is private to that file.
#include "chat.cpp"

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

namespace pyllmcancel {
namespace {

// llama.cpp walks over messages and schemas by recursion.
constexpr JsonLimits MAX_JSON{std::size_t{1} << 24U, 200, std::size_t{1} << 16U};

using Templates = common_chat_templates_ptr;

Templates compile(const ChatTemplateSource & source) {
    const std::string text = source.source.empty() ? "chatml" : source.source; // llama.cpp's name for its default
    const EngineInUse in_use(source.engine);
    try {
        return common_chat_templates_init(nullptr, text, source.bos, source.eos);
    } catch (const std::exception &) {
        common_chat_template(text, source.bos,
                             source.eos); // throws the same, with the message that was lost on the way here
        throw;
    }
}

// Throws UsageError in place of any error of llama.cpp's.
template <typename Work> auto in_their_words(Work work) {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        throw UsageError(error.what());
    }
}

// The facts about a template that are found by rendering it dozens of times. With the real token for the end of an
// answer, llama.cpp takes it for a part of Mistral Small 3.2's calls; nothing else depends on the two tokens.
struct Analysis {
    std::mutex mutex;
    bool is_done = false;
    std::unique_ptr<common_chat_template> tokenless;
    autoparser::autoparser parser;
};

common_json parse_inputs(const std::string & text) {
    if (json_size(text, MAX_JSON).excess != JsonExcess::none) {
        throw UsageError("the messages are nested too deeply, or too many");
    }
    return common_json::parse(text);
}

// The template sees `tools`; the grammar of their calls is made from `schemas`, one for each, as far as it is given.
struct Inputs : common_chat_templates_inputs {
    common_json schemas = common_json::array();
};

Inputs read_inputs(const common_json & json) {
    Inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(json.at("messages"));
    if (json.contains("tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(json.at("tools"));
    }
    if (json.contains("tool_schemas")) {
        inputs.schemas = json.at("tool_schemas");
    }
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(json.value("tool_choice", "auto"));
    inputs.parallel_tool_calls = json.value("parallel_tool_calls", false);
    if (json.contains("json_schema") && !json.at("json_schema").is_null()) {
        inputs.json_schema = json.at("json_schema").dump();
    }
    inputs.grammar = json.value("grammar", "");
    inputs.add_generation_prompt = json.value("add_generation_prompt", true);
    if (json.contains("continue_final_message")) {
        inputs.continue_final_message = common_chat_continuation_parse(json.at("continue_final_message"));
    }
    inputs.reasoning_format = common_reasoning_format_from_name(json.value("reasoning_format", "auto"));
    inputs.enable_thinking = json.value("enable_thinking", true);
    inputs.force_pure_content = json.value("force_pure_content", false);
    inputs.use_jinja = json.value("use_jinja", true);
    if (json.contains("chat_template_kwargs")) {
        for (const auto & [name, value] : json.at("chat_template_kwargs").items()) {
            inputs.chat_template_kwargs[name] = value.dump();
        }
    }
    return inputs;
}

const char * trigger_name(common_grammar_trigger_type type) {
    switch (type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN: return "token";
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: return "word";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: return "pattern";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: return "pattern_full";
    }
    throw UsageError("an unknown kind of grammar trigger");
}

common_json to_json(const common_grammar_trigger & trigger) {
    common_json json{{"type", trigger_name(trigger.type)}, {"value", trigger.value}};
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN) {
        json["token"] = trigger.token;
    }
    return json;
}

// All inputs but the prompt.
std::string form_text(const common_chat_params & rendered) {
    common_json triggers = common_json::array();
    for (const common_grammar_trigger & trigger : rendered.grammar_triggers) {
        triggers.push_back(to_json(trigger));
    }
    const common_json json{
        {"format", common_chat_format_name(rendered.format)},
        {"parser", rendered.parser},
        {"grammar", rendered.grammar},
        {"grammar_lazy", rendered.grammar_lazy},
        {"grammar_triggers", triggers},
        {"preserved_tokens", rendered.preserved_tokens},
        {"additional_stops", rendered.additional_stops},
        {"generation_prompt", rendered.generation_prompt},
        {"supports_thinking", rendered.supports_thinking},
        {"thinking_start_tag", rendered.thinking_start_tag},
        {"thinking_end_tags", rendered.thinking_end_tags},
    };
    return json.dump_safe(); // a template may cut a text in the middle of a character
}

// The messages as far as the form of an answer depends on them: the role of the last one.
std::string form_key(const common_json & json, const std::vector<common_chat_msg> & messages) {
    common_json key = json;
    key.erase("messages");
    return (messages.empty() ? "" : messages.back().role) + key.dump_safe();
}

// Tools of which each has the schema that can be enforced.
common_json with_schemas(common_json tools, const common_json & schemas) {
    for (std::size_t place = 0; place < std::min(tools.size(), schemas.size()); ++place) {
        tools.at(place).at("function")["parameters"] = schemas.at(place);
    }
    return tools;
}

std::string with_prompt(const std::string & prompt, const std::string & form) {
    return "{\"prompt\":" + common_json(prompt).dump_safe() + "," + form.substr(1);
}

} // namespace

// The form of an answer, which takes several renderings to find. It is that of the next request with the same tools and
// variables, too, if the prompt ends in the same way.
struct ChatTemplate::Form {
    std::string text;
    std::string generation_prompt;
};

struct ChatTemplate::Compiled {
    static constexpr std::size_t MAX_FORMS = 16;

    TemplateEngine engine;
    Templates templates;
    mutable Analysis analysis;
    mutable std::mutex mutex;
    mutable std::list<std::pair<std::string, std::shared_ptr<const Form>>> forms; // the newest first

    std::string apply(const common_json & json) const;
    std::shared_ptr<const Form> known_form(const std::string & key) const;
    void remember(const std::string & key, std::shared_ptr<const Form> form) const;
    const common_chat_template & only() const { return *templates->template_default; }
    common_chat_params render(const Inputs & inputs, bool & is_special) const;
    autoparser::generation_params prepare(const Inputs & inputs) const;
    const autoparser::autoparser & analyse() const;
};

const autoparser::autoparser & ChatTemplate::Compiled::analyse() const {
    // Not by std::call_once: a template may throw, and an exception that passes the C library's pthread_once ends the
    // process where the unwinder is linked into this module.
    const std::lock_guard<std::mutex> lock(analysis.mutex);
    if (!analysis.is_done) {
        const EngineInUse in_use(engine);
        auto tokenless = std::make_unique<common_chat_template>(only().source(), "", "");
        autoparser::autoparser parser;
        parser.analyze_template(*tokenless);
        analysis.tokenless = std::move(tokenless);
        analysis.parser = std::move(parser);
        analysis.is_done = true;
    }
    return analysis.parser;
}

// Returns the messages as this template expects them.
autoparser::generation_params ChatTemplate::Compiled::prepare(const Inputs & inputs) const {
    autoparser::generation_params params;
    const jinja::caps caps = only().original_caps();
    std::vector<common_chat_msg> messages = inputs.messages;
    if (only().source().find("You have access to the following functions in JSONSchema format") != std::string::npos) {
        workaround::trim_all_content(messages);
    }
    params.continue_final_message = inputs.continue_final_message;
    params.add_generation_prompt = inputs.add_generation_prompt;
    if (inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE) {
        params.add_generation_prompt = false;
        if (!messages.empty()) {
            params.continue_msg = inputs.messages.back();
            messages.pop_back();
        }
        if (inputs.continue_final_message == COMMON_CHAT_CONTINUATION_AUTO) {
            const common_chat_msg & last = params.continue_msg;
            const bool only_reasoned =
                !last.reasoning_content.empty() && last.content.empty() && last.content_parts.empty();
            params.continue_final_message =
                only_reasoned ? COMMON_CHAT_CONTINUATION_REASONING : COMMON_CHAT_CONTINUATION_CONTENT;
        }
    }
    params.messages = render_message_to_json(messages, caps);
    if (only().source().find("<|channel|>") == std::string::npos) {
        workaround::map_developer_role_to_system(params.messages);
    }
    if (!caps.supports_system_role) {
        workaround::system_message_not_supported(params.messages);
    }
    if (caps.supports_tool_calls) {
        workaround::requires_non_null_content(params.messages);
    }
    if (caps.supports_object_arguments) {
        workaround::func_args_not_string(params.messages);
    }
    const common_json tools = common_chat_tools_to_json_oaicompat(inputs.tools);
    params.tools = with_schemas(tools, inputs.schemas);
    params.tool_choice = inputs.tool_choice;
    params.parallel_tool_calls = inputs.parallel_tool_calls;
    params.reasoning_format = inputs.reasoning_format;
    params.enable_thinking = inputs.enable_thinking;
    params.grammar = inputs.grammar;
    params.now = inputs.now;
    params.add_bos = templates->add_bos;
    params.add_eos = templates->add_eos;
    params.extra_context = common_chat_extra_context();
    for (const auto & [name, value] : inputs.chat_template_kwargs) {
        params.extra_context[name] = common_json::parse(value);
    }
    if (!tools.empty()) {
        // Undoes llama.cpp's replacement of its own additions in the context: the model must read the client's text.
        params.extra_context["tools"] = tools;
    }
    if (!inputs.json_schema.empty()) {
        params.json_schema = common_json::parse(inputs.json_schema);
    }
    return params;
}

std::shared_ptr<const ChatTemplate::Form> ChatTemplate::Compiled::known_form(const std::string & key) const {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto place = forms.begin(); place != forms.end(); ++place) {
        if (place->first == key) {
            forms.splice(forms.begin(), forms, place);
            return place->second;
        }
    }
    return nullptr;
}

void ChatTemplate::Compiled::remember(const std::string & key, std::shared_ptr<const Form> form) const {
    const std::lock_guard<std::mutex> lock(mutex);
    forms.emplace_front(key, std::move(form));
    if (forms.size() > MAX_FORMS) {
        forms.pop_back();
    }
}

std::string ChatTemplate::Compiled::apply(const common_json & json) const {
    const Inputs inputs = read_inputs(json);
    const std::string key = form_key(json, inputs.messages);
    if (const std::shared_ptr<const Form> form = known_form(key)) {
        const std::string prompt = common_chat_template_direct_apply(only(), prepare(inputs));
        if (string_ends_with(prompt, form->generation_prompt)) {
            return with_prompt(prompt, form->text);
        }
    }
    bool is_special = true;
    const common_chat_params rendered = render(inputs, is_special);
    const auto form = std::make_shared<const Form>(Form{form_text(rendered), rendered.generation_prompt});
    // Any prompt ends with a generation prompt that is empty: it may be that of another conversation.
    const bool is_told = !rendered.generation_prompt.empty();
    if (is_told && !is_special && inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE) {
        remember(key, form);
    }
    return with_prompt(rendered.prompt, form->text);
}

// As llama.cpp does, which analyses the template for every request. What is special to a family is in llama.cpp's code.
common_chat_params ChatTemplate::Compiled::render(const Inputs & inputs, bool & is_special) const {
    if (!inputs.use_jinja || inputs.force_pure_content) {
        return common_chat_templates_apply(templates.get(), inputs);
    }
    autoparser::generation_params params = prepare(inputs);
    if (!inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE && !inputs.grammar.empty()) {
        throw UsageError("a grammar cannot be combined with tools");
    }
    if (auto rendered = common_chat_try_specialized_template(only(), only().source(), params)) {
        return *rendered;
    }
    is_special = false;
    const autoparser::autoparser & analysed = analyse();
    common_chat_params rendered = autoparser::peg_generator::generate_parser(only(), params, analysed);
    rendered.supports_thinking = analysed.reasoning.mode != autoparser::reasoning_mode::NONE;
    if (rendered.supports_thinking) {
        rendered.thinking_start_tag = trim_whitespace(analysed.reasoning.start);
        const std::string end = trim_whitespace(analysed.reasoning.end);
        if (!end.empty()) {
            rendered.thinking_end_tags = {end};
        }
    }
    return rendered;
}

ChatTemplate::ChatTemplate(const ChatTemplateSource & source) : compiled_(std::make_unique<Compiled>()) {
    compiled_->engine = source.engine;
    in_their_words([&] { compiled_->templates = compile(source); });
    compiled_->templates->add_bos = source.adds_bos;
    compiled_->templates->add_eos = source.adds_eos;
}

ChatTemplate::~ChatTemplate() = default;

std::map<std::string, bool> ChatTemplate::caps() const {
    return common_chat_templates_get_caps(compiled_->templates.get());
}

std::string ChatTemplate::apply(const std::string & inputs) const {
    return in_their_words([&] { return compiled_->apply(parse_inputs(inputs)); });
}

} // namespace pyllmcancel
