#include "grammar/grammar_triggers.hpp"

#include "platform/errors.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

namespace pyllmcancel {
namespace {

constexpr std::size_t NOWHERE = std::string::npos;
constexpr std::size_t WINDOW = 2048;       // bytes of the answer that are remembered: more than the longest trigger
constexpr std::size_t PATTERN_WINDOW = 256; // … in which a pattern is searched that has no literal beginning

// Each match in time that grows with its length only, and without a frame of the stack for each byte: libstdc++'s other way
// to follow a pattern is to try all of its readings, by recursion.
constexpr auto SYNTAX =
#ifdef __GLIBCXX__
    std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
    std::regex::ECMAScript;
#endif

bool is_one_of(char byte, std::string_view bytes) { return bytes.find(byte) != std::string_view::npos; }

// The literal text that each match of a pattern begins with.
std::string literal_start(const std::string & pattern) {
    std::string start;
    int depth = 0;
    for (std::size_t at = 0; at < pattern.size(); ++at) {
        at += pattern[at] == '\\' ? 1 : 0;
        if (at > 0 && pattern[at - 1] == '\\') {
            continue;
        }
        depth += pattern[at] == '(' ? 1 : pattern[at] == ')' ? -1 : 0;
        if (pattern[at] == '|' && depth == 0) {
            return ""; // of alternatives, none
        }
    }
    for (std::size_t at = 0; at < pattern.size() && !is_one_of(pattern[at], "^$.()[|"); ++at) {
        if (is_one_of(pattern[at], "*+?{")) {
            start.pop_back();
            break;
        }
        if (pattern[at] == '\\' && ++at < pattern.size() &&
            std::isalnum(static_cast<unsigned char>(pattern[at])) != 0) {
            break; // a class of characters
        }
        start += at < pattern.size() ? pattern[at] : '\\';
    }
    return start;
}

llama_token parse_token(const std::string & text, int32_t n_vocab) {
    llama_token token = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token);
    if (error != std::errc() || end != text.data() + text.size() || token < 0 || token >= n_vocab) {
        throw UsageError("a trigger of the grammar is token " + text + ", which is not in the vocabulary");
    }
    return token;
}

// Where the last of `words` begins that ends in the last `n_new` bytes of a text.
std::size_t find_word(const std::vector<std::string> & words, const std::string & text, std::size_t n_new) {
    std::size_t found = NOWHERE;
    for (const std::string & word : words) {
        const std::size_t reach = n_new + word.size() - 1;
        const std::size_t at = text.find(word, text.size() - std::min(text.size(), reach));
        found = std::min(found, at);
    }
    return found;
}

} // namespace

GrammarTriggers::GrammarTriggers(const Pairs & triggers, int32_t n_vocab) {
    if (triggers.size() > MAX_TRIGGERS) {
        throw UsageError("a grammar has at most " + std::to_string(MAX_TRIGGERS) + " triggers");
    }
    for (const auto & [kind, value] : triggers) {
        if (value.empty() || value.size() > LONGEST) {
            throw UsageError("a trigger of the grammar has 1 to " + std::to_string(LONGEST) + " bytes");
        }
        if (kind == "token") {
            tokens_.push_back(parse_token(value, n_vocab));
        } else if (kind == "word") {
            words_.push_back(value);
        } else if (kind == "pattern") {
            add_pattern(value);
        } else if (kind == "pattern_full") {
            add_pattern((value.front() == '^' ? "" : "^") + value + (value.back() == '$' ? "" : "$"));
        } else {
            throw UsageError("a trigger of the grammar is of no kind that is known: " + kind);
        }
    }
}

void GrammarTriggers::add_pattern(const std::string & pattern) {
    try {
        patterns_.push_back({std::regex(pattern, SYNTAX), literal_start(pattern), pattern.front() == '^'});
    } catch (const std::regex_error & error) {
        throw UsageError("a trigger of the grammar is no pattern: " + std::string(error.what()));
    }
}

bool GrammarTriggers::has_token(llama_token token) const noexcept {
    return std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end();
}

std::size_t GrammarTriggers::match_at(const Pattern & pattern, const std::string & text, std::size_t place,
                                      bool begins) {
    using namespace std::regex_constants;
    match_flag_type flags = place == 0 && begins ? match_default : match_not_bol;
    flags |= pattern.anchored || !pattern.start.empty() ? match_continuous : match_default;
    std::smatch match;
    if (!std::regex_search(text.begin() + static_cast<std::ptrdiff_t>(place), text.end(), match, pattern.regex,
                           flags)) {
        return NOWHERE;
    }
    std::size_t group = 1;
    while (group < match.size() && match.length(group) == 0) {
        ++group;
    }
    return place + static_cast<std::size_t>(match.position(group < match.size() ? group : 0));
}

std::size_t GrammarTriggers::find_pattern(const Pattern & pattern, const std::string & text, bool begins) {
    if (pattern.anchored) {
        return begins ? match_at(pattern, text, 0, begins) : NOWHERE;
    }
    if (pattern.start.empty()) {
        return match_at(pattern, text, text.size() - std::min(text.size(), PATTERN_WINDOW), begins);
    }
    for (std::size_t at = text.find(pattern.start); at != NOWHERE; at = text.find(pattern.start, at + 1)) {
        const std::size_t found = match_at(pattern, text, at, begins);
        if (found != NOWHERE) {
            return found;
        }
    }
    return NOWHERE;
}

std::size_t GrammarTriggers::find(const std::string & text, std::size_t n_new, bool begins) const {
    const std::size_t word = find_word(words_, text, n_new);
    if (word != NOWHERE) {
        return word;
    }
    for (const Pattern & pattern : patterns_) {
        const std::size_t found = find_pattern(pattern, text, begins);
        if (found != NOWHERE) {
            return found;
        }
    }
    return NOWHERE;
}

GrammarAlarm::GrammarAlarm(std::shared_ptr<const GrammarTriggers> triggers, ThinkingMarks marks,
                           const std::string & prompt)
    : triggers_(std::move(triggers)), marks_(std::move(marks)) {
    marks_.ends.erase(std::remove(marks_.ends.begin(), marks_.ends.end(), ""), marks_.ends.end());
    const std::size_t start = marks_.start.empty() ? NOWHERE : prompt.rfind(marks_.start);
    if (start != NOWHERE) {
        const std::string rest = prompt.substr(start + marks_.start.size());
        thinking_ = find_word(marks_.ends, rest, rest.size()) == NOWHERE;
    }
}

std::optional<std::string> GrammarAlarm::hear(llama_token token, const std::string & piece) {
    text_ += piece;
    if (thinking_ && !leave_thinking(piece.size())) {
        forget_before(text_.size() - std::min(text_.size(), WINDOW));
        return std::nullopt;
    }
    if (triggers_->has_token(token)) {
        return piece;
    }
    const std::size_t found = triggers_->find(text_, piece.size(), begins_);
    if (found != NOWHERE) {
        return text_.substr(found);
    }
    if (!marks_.start.empty() && find_word({marks_.start}, text_, piece.size()) != NOWHERE) {
        thinking_ = true;
        forget_before(text_.size());
    }
    if (text_.size() > 2 * WINDOW) {
        forget_before(text_.size() - WINDOW);
    }
    return std::nullopt;
}

// The mark that ends it may be a trigger itself.
bool GrammarAlarm::leave_thinking(std::size_t n_new) {
    const std::size_t end = find_word(marks_.ends, text_, n_new);
    if (end == NOWHERE) {
        return false;
    }
    thinking_ = false;
    forget_before(end);
    return true;
}

void GrammarAlarm::forget_before(std::size_t place) {
    begins_ = begins_ && place == 0;
    text_.erase(0, place);
}

} // namespace pyllmcancel
