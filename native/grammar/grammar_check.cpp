#include "grammar/grammar_check.hpp"

#include "platform/errors.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

namespace pyllmcancel {
namespace {

constexpr std::size_t LONGEST = 1U << 18U;       // bytes
constexpr std::size_t LONGEST_NAME = 128;        // bytes; each rule that a repetition becomes has it too
constexpr int DEEPEST = 200;                     // parentheses
constexpr std::size_t MAX_REPETITIONS = 2000;    // llama.cpp's own limit
constexpr std::size_t MAX_REPEATED = 1U << 22U; // bytes: llama.cpp writes out what is repeated
constexpr const char * BLANK = " \t\r\n";
constexpr const char * DIGITS = "0123456789";

// The position of the closing `close` of what begins at `at`; a backslash escapes it.
std::size_t skip_quoted(const std::string & text, std::size_t at, char close) {
    for (++at; at < text.size() && text[at] != close; ++at) {
        at += text[at] == '\\' ? 1 : 0;
    }
    return at;
}

bool in_name(char byte) { return std::isalnum(static_cast<unsigned char>(byte)) != 0 || byte == '-'; }

// The position of the last character of the name at `at`.
std::size_t skip_name(const std::string & text, std::size_t at) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    const auto length = static_cast<std::size_t>(std::find_if_not(begin, text.end(), in_name) - begin);
    if (length > LONGEST_NAME) {
        throw UsageError("the grammar has a name of more than " + std::to_string(LONGEST_NAME) + " bytes");
    }
    return at + length - 1;
}

// The number at `at`, with blanks around it, or nothing if there is none; `at` moves behind them. A larger number than
// any that is allowed becomes the least of those.
std::optional<std::size_t> read_number(const std::string & text, std::size_t & at) {
    const auto skip = [&](const char * bytes) { at = std::min(text.find_first_not_of(bytes, at), text.size()); };
    skip(BLANK);
    const std::size_t begin = at;
    skip(DIGITS);
    const std::size_t end = at;
    skip(BLANK);
    std::size_t number = 0;
    for (std::size_t digit = begin; digit < end; ++digit) {
        number = std::min(10 * number + static_cast<std::size_t>(text[digit] - '0'), MAX_REPETITIONS + 1);
    }
    return end > begin ? std::optional(number) : std::nullopt;
}

struct Repetition {
    std::size_t least, most; // without an upper limit, the rule that goes on calls itself: `most` is `least`
};

// The repetition {m}, {m,} or {m,n} at `at`, which moves to the closing brace. llama.cpp's parser would also skip comments in it.
Repetition read_repetition(const std::string & text, std::size_t & at) {
    ++at;
    const std::optional<std::size_t> least = read_number(text, at);
    std::optional<std::size_t> most = least;
    if (at < text.size() && text[at] == ',') {
        const std::optional<std::size_t> bound = read_number(text, ++at);
        most = bound ? bound : least;
    }
    if (!least || at >= text.size() || text[at] != '}') {
        throw UsageError("the grammar has a brace that begins no repetition {m}, {m,} or {m,n}");
    }
    if (*most < *least) {
        throw UsageError("the grammar repeats from more times to fewer");
    }
    if (*most > MAX_REPETITIONS) {
        throw UsageError("the grammar repeats more often than " + std::to_string(MAX_REPETITIONS) + " times");
    }
    return {*least, *most};
}

// The size of the text that the parser writes out for repetitions: copies of the item before each, and a rule for each copy that may
// be absent. All of this is the item of a repetition that follows at once, so sizes multiply.
class Repeated {
  public:
    void begin_item(std::size_t size) noexcept { item_ = size; }

    void repeat(Repetition times, std::size_t name) {
        written_ += (times.most + 2) * item_ + times.most * name;
        if (written_ > MAX_REPEATED) {
            throw UsageError("the grammar repeats more than " + std::to_string(MAX_REPEATED) + " bytes");
        }
        item_ = times.least * item_ + 1;
    }

  private:
    std::size_t written_ = 0;
    std::size_t item_ = 0; // elements, or more: a literal has one for each byte at most
};

} // namespace

void check_grammar(const std::string & grammar) {
    if (grammar.size() > LONGEST) {
        throw UsageError("the grammar is longer than " + std::to_string(LONGEST) + " bytes");
    }
    if (grammar.find('\0') != std::string::npos) {
        throw UsageError("the grammar has the character U+0000, behind which it would not be read");
    }
    int depth = 0;
    Repeated repeated;
    for (std::size_t at = 0; at < grammar.size(); ++at) {
        const std::size_t begin = at;
        switch (grammar[at]) {
            case '"':
            case '[':
                at = skip_quoted(grammar, at, grammar[at] == '[' ? ']' : '"');
                repeated.begin_item(at - begin);
                break;
            case '<':
                at = std::min(grammar.find('>', at), grammar.size());
                repeated.begin_item(1);
                break;
            case '#': at = std::min(grammar.find_first_of("\r\n", at), grammar.size()); break;
            case '(': ++depth; break;
            case ')':
                --depth;
                repeated.begin_item(1);
                break;
            case '*':
            case '?': repeated.repeat({0, 1}, 0); break;
            case '+': repeated.repeat({1, 1}, 0); break;
            case '{': repeated.repeat(read_repetition(grammar, at), LONGEST_NAME); break;
            case '.': repeated.begin_item(1); break;
            default:
                if (in_name(grammar[at])) {
                    at = skip_name(grammar, at);
                    repeated.begin_item(1);
                }
        }
        if (depth > DEEPEST) {
            throw UsageError("the grammar is nested deeper than " + std::to_string(DEEPEST) + " parentheses");
        }
    }
}

} // namespace pyllmcancel
