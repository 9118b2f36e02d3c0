#include "grammar_check.hpp"

#include "errors.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace pyllmcancel {
namespace {

constexpr std::size_t LONGEST = 1U << 18U; // bytes
constexpr int DEEPEST = 200;               // parentheses
constexpr long MOST_REPETITIONS = 2000;    // llama.cpp's own limit
constexpr std::size_t MOST_RULES = 2000;   // its search for left recursion descends from rule to rule

// The position after what begins at `at` with `open` and ends with `close`, where a backslash takes a character along.
std::size_t skip_quoted(const std::string & text, std::size_t at, char close) {
    for (++at; at < text.size() && text[at] != close; ++at) {
        at += text[at] == '\\' ? 1 : 0;
    }
    return at;
}

// A repetition {m}, {m,} or {m,n} that begins at `at`.
void check_repetition(const std::string & text, std::size_t at) {
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) {
        return; // the parser says so itself
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
    if (least < 0 || most > MOST_REPETITIONS) {
        throw UsageError("the grammar repeats more often than " + std::to_string(MOST_REPETITIONS) + " times");
    }
}

} // namespace

void check_grammar(const std::string & grammar) {
    if (grammar.size() > LONGEST) {
        throw UsageError("the grammar is longer than " + std::to_string(LONGEST) + " bytes");
    }
    int depth = 0;
    std::size_t n_rules = 0;
    for (std::size_t at = 0; at < grammar.size(); ++at) {
        switch (grammar[at]) {
            case '"': at = skip_quoted(grammar, at, '"'); break;
            case '[': at = skip_quoted(grammar, at, ']'); break;
            case '#': at = std::min(grammar.find('\n', at), grammar.size()); break;
            case '(': ++depth; break;
            case ')': --depth; break;
            case '{': check_repetition(grammar, at); break;
            case '=': ++n_rules; break;
            default: break;
        }
        if (depth > DEEPEST) {
            throw UsageError("the grammar is nested deeper than " + std::to_string(DEEPEST) + " parentheses");
        }
    }
    if (n_rules > MOST_RULES) {
        throw UsageError("the grammar has more than " + std::to_string(MOST_RULES) + " rules");
    }
}

} // namespace pyllmcancel
