#include "grammar/grammar_check.hpp"

#include "platform/errors.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace pyllmcancel {
namespace {

constexpr std::size_t LONGEST = 1U << 18U;       // bytes
constexpr std::size_t LONGEST_NAME = 128;        // bytes; each rule that a repetition becomes has it too
constexpr int DEEPEST = 200;                     // parentheses
constexpr long MAX_REPETITIONS = 2000;          // llama.cpp's own limit
constexpr std::size_t MAX_REPEATED = 1U << 22U; // bytes: llama.cpp writes out what is repeated

// The position of the closing `close` of what begins at `at`; a backslash escapes it.
std::size_t skip_quoted(const std::string & text, std::size_t at, char close) {
    for (++at; at < text.size() && text[at] != close; ++at) {
        at += text[at] == '\\' ? 1 : 0;
    }
    return at;
}

bool in_name(char byte) { return std::isalnum(static_cast<unsigned char>(byte)) != 0 || byte == '-'; }

// The position of the last character of a name, if one begins at `at`.
std::size_t skip_name(const std::string & text, std::size_t at) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    const auto length = static_cast<std::size_t>(std::find_if_not(begin, text.end(), in_name) - begin);
    if (length > LONGEST_NAME) {
        throw UsageError("the grammar has a name of more than " + std::to_string(LONGEST_NAME) + " bytes");
    }
    return at + std::max(length, std::size_t{1}) - 1;
}

// The most times that the repetition {m}, {m,} or {m,n} at `at` repeats.
std::size_t repetitions(const std::string & text, std::size_t at) {
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) {
        return 0; // the parser says so itself
    }
    const std::string inside = text.substr(at + 1, end - at - 1);
    const std::size_t comma = inside.find(',');
    const long least = std::strtol(inside.c_str(), nullptr, 10);
    const bool bounded =
        comma != std::string::npos && std::any_of(inside.begin() + static_cast<std::ptrdiff_t>(comma), inside.end(),
                                                  [](unsigned char byte) { return std::isdigit(byte) != 0; });
    const long most = bounded ? std::strtol(inside.c_str() + comma + 1, nullptr, 10) : least;
    if (most < least) {
        throw UsageError("the grammar repeats from more times to fewer: {" + inside + "}");
    }
    if (least < 0 || most > MAX_REPETITIONS) {
        throw UsageError("the grammar repeats more often than " + std::to_string(MAX_REPETITIONS) + " times");
    }
    return static_cast<std::size_t>(most);
}

} // namespace

void check_grammar(const std::string & grammar) {
    if (grammar.size() > LONGEST) {
        throw UsageError("the grammar is longer than " + std::to_string(LONGEST) + " bytes");
    }
    int depth = 0;
    std::size_t n_repeated = 0;
    std::size_t item = 0; // bytes of what a repetition would repeat, at most
    for (std::size_t at = 0; at < grammar.size(); ++at) {
        const std::size_t begin = at;
        switch (grammar[at]) {
            case '"': at = skip_quoted(grammar, at, '"'); break;
            case '[': at = skip_quoted(grammar, at, ']'); break;
            case '<': at = std::min(grammar.find('>', at), grammar.size()); break;
            case '#': at = std::min(grammar.find_first_of("\r\n", at), grammar.size()); break;
            case '(': ++depth; break;
            case ')': --depth; break;
            case '{': n_repeated += repetitions(grammar, at) * (item + LONGEST_NAME); break;
            default: at = skip_name(grammar, at); break; // which may be none
        }
        if (grammar[begin] == '"' || grammar[begin] == '[') {
            item = at - begin;
        } else if (in_name(grammar[begin]) || grammar[begin] == ')') {
            item = 1;
        }
        if (depth > DEEPEST) {
            throw UsageError("the grammar is nested deeper than " + std::to_string(DEEPEST) + " parentheses");
        }
        if (n_repeated > MAX_REPEATED) {
            throw UsageError("the grammar repeats more than " + std::to_string(MAX_REPEATED) + " bytes");
        }
    }
}

} // namespace pyllmcancel
