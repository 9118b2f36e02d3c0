// libFuzzer's entry: an answer of a model, after one byte for its form and one for the cuts. However it is cut, its parts
// are the same, put together. The forms are files, which tests/fuzz/answers.py has written; the same module reads the
// same inputs in Python.

#include "characters.hpp"
#include "chat/chat_form.hpp"
#include "chat/chat_parser.hpp"
#include "platform/log.hpp"

#include "chat.h"
#include "ggml.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "llama.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// What the sources of the parser name, and other sources define: those have every family's templates besides, or compute.

const char * common_chat_format_name(common_chat_format format) {
    switch (format) {
        case COMMON_CHAT_FORMAT_PEG_GEMMA4: return "peg-gemma4";
        case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: return "peg-minimax-m3";
        default: throw std::runtime_error("no dialect has this format");
    }
}

extern "C" void ggml_abort(const char * file, int line, const char * format, ...) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, format);
    std::abort();
}

// Never called: forms come with their grammar, and answers as text.
common_json common_chat_tool_parameters(const common_json & /*function*/) { std::abort(); }
std::string gbnf_format_literal(const std::string & /*literal*/) { std::abort(); }
int32_t llama_tokenize(const llama_vocab *, const char *, int32_t, llama_token *, int32_t, bool, bool) { std::abort(); }
int32_t llama_token_to_piece(const llama_vocab *, llama_token, char *, int32_t, int32_t, bool) { std::abort(); }

namespace pyllmcancel {

bool logs_to_stderr() { return false; }
void log_to_stderr(ggml_log_level /*level*/, const char * /*text*/) {}

} // namespace pyllmcancel

namespace {

using pyllmcancel::ChatForm;
using pyllmcancel::ChatParser;
using pyllmcancel::ChatPart;
using Forms = std::vector<std::shared_ptr<const ChatForm>>;

struct Message {
    std::string content;
    std::string reasoning;
    std::vector<std::tuple<std::string, std::string, std::string>> calls; // the name, the id, the arguments

    bool operator==(const Message & other) const {
        return std::tie(content, reasoning, calls) == std::tie(other.content, other.reasoning, other.calls);
    }
};

Forms read_forms() {
    const char * folder = std::getenv("PYLLMCANCEL_FORMS");
    Forms forms;
    while (folder != nullptr) {
        char name[8];
        std::snprintf(name, sizeof name, "/%03zu", forms.size());
        std::ifstream file(std::string(folder) + name, std::ios::binary);
        if (!file) {
            break;
        }
        forms.push_back(std::make_shared<const ChatForm>(std::string(std::istreambuf_iterator<char>(file), {})));
    }
    if (forms.empty()) {
        std::fputs("PYLLMCANCEL_FORMS must name the folder that tests.fuzz.answers has written\n", stderr);
        std::exit(1);
    }
    return forms;
}

void add(Message & message, const std::vector<ChatPart> & parts) {
    for (const ChatPart & part : parts) {
        switch (part.kind) {
            case ChatPart::Kind::content: message.content += part.text; break;
            case ChatPart::Kind::reasoning: message.reasoning += part.text; break;
            case ChatPart::Kind::call: message.calls.emplace_back(part.text, part.id, ""); break;
            case ChatPart::Kind::arguments: std::get<2>(message.calls.at(part.index)) += part.text; break;
        }
    }
}

// The message, if each piece has as many characters as `next_size` says.
template <typename Size>
Message parse(const std::shared_ptr<const ChatForm> & form, const std::vector<std::string> & text, Size next_size) {
    ChatParser parser(form);
    Message message;
    for (std::size_t at = 0; at < text.size();) {
        std::string piece;
        const std::size_t end = std::min(text.size(), at + next_size());
        for (; at < end; ++at) {
            piece += text[at];
        }
        add(message, parser.feed(piece, false));
    }
    add(message, parser.feed("", true));
    if (static_cast<std::size_t>(parser.n_calls()) != message.calls.size()) {
        std::abort();
    }
    return message;
}

void print(const char * how, const Message & message) {
    std::fprintf(stderr, "%s: content %s\n  reasoning %s\n", how, message.content.c_str(), message.reasoning.c_str());
    for (const auto & [name, id, arguments] : message.calls) {
        std::fprintf(stderr, "  call %s [%s] %s\n", name.c_str(), id.c_str(), arguments.c_str());
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, std::size_t size) {
    static const Forms forms = read_forms();
    if (size < 2) {
        return 0;
    }
    const auto & form = forms[data[0] % forms.size()];
    const auto text = characters({reinterpret_cast<const char *>(data) + 2, size - 2});
    uint32_t state = data[1];
    const Message whole = parse(form, text, [&] { return text.size(); });
    const Message one_by_one = parse(form, text, [] { return std::size_t{1}; });
    const Message cut = parse(form, text, [&] {
        state = state * 1664525U + 1013904223U;
        return std::size_t{1} << ((state >> 24U) % 6);
    });
    if (!(whole == one_by_one) || !(whole == cut)) {
        print("whole", whole);
        print("one by one", one_by_one);
        print("cut", cut);
        std::abort();
    }
    return 0;
}
