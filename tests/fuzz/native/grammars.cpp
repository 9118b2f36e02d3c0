// libFuzzer's entry: a GBNF grammar of a request, and after a zero the choices among the tokens that it allows, a byte for
// each. The grammar is checked, parsed and followed as a Sampler does it. However an answer is cut into tokens, it is as far;
// and where a grammar has few readings, the stacks of a plain matcher allow the same characters.

#include "characters.hpp"
#include "grammar/grammar.hpp"
#include "grammar/grammar_matcher.hpp"
#include "platform/errors.hpp"

#include "ggml.h"
#include "llama-impl.h"
#include "llama-vocab.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

// A vocabulary of each byte, of words, and of characters cut anywhere.
struct llama_vocab::impl {
    std::vector<std::string> pieces;
};

llama_vocab::llama_vocab() : pimpl(new impl) {
    for (int byte = 0; byte < 256; ++byte) {
        pimpl->pieces.emplace_back(1, static_cast<char>(byte));
    }
    // The first is empty, and the characters of the last ones are cut.
    std::istringstream words(
        "|<think>|</s>|ab|abc|bc|the| the|true|null|{\"|\":|\"}|[[|]]|\n\n|12|\xC3\xA9|\xE2\x82\xAC|"
        "\xE2\x82|a\xE2|\x82\xAC!|\xF0\x9F\x99\x82|\xF0\x9F\x99|\x82\xF0|a\xFF|\xED\xA0|\xF0\x80");
    for (std::string word; std::getline(words, word, '|');) {
        pimpl->pieces.push_back(word);
    }
    pimpl->pieces.emplace_back("a\0b", 3);
}

llama_vocab::~llama_vocab() = default;

const std::string & llama_vocab::token_to_piece(llama_token token) const {
    return pimpl->pieces.at(static_cast<std::size_t>(token));
}

uint32_t llama_vocab::n_tokens() const { return static_cast<uint32_t>(pimpl->pieces.size()); }

int32_t llama_vocab::tokenize(const char * text, int32_t length, llama_token * tokens, int32_t most, bool /*special*/,
                              bool /*parse*/) const {
    const std::string_view wanted(text, static_cast<std::size_t>(length));
    const auto found = std::find(pimpl->pieces.begin(), pimpl->pieces.end(), wanted);
    if (found == pimpl->pieces.end() || most < 1) {
        return -length;
    }
    tokens[0] = static_cast<llama_token>(found - pimpl->pieces.begin());
    return 1;
}

// What the sources of the grammar name for what is never called here, or never printed.

bool llama_vocab::is_eog(llama_token /*token*/) const { return false; }
void llama_log_internal(ggml_log_level /*level*/, const char * /*format*/, ...) {}

extern "C" void ggml_abort(const char * file, int line, const char * format, ...) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, format);
    std::abort();
}

namespace {

using pyllmcancel::Grammar;
using pyllmcancel::GrammarMatcher;
using pyllmcancel::GrammarTooComplex;

constexpr std::size_t MAX_TOKENS = 12; // of an answer
constexpr std::size_t MAX_TEXT = 16384; // bytes of a grammar
constexpr std::size_t MAX_STACKS = 500; // of the plain matcher, for a character
constexpr std::size_t MAX_DEPTH = 50; // … of one of them
constexpr std::string_view CHOICES = "\x02\x11\x25\x47\x83\xF1"; // where an input has none

void fail(const char * what, const std::string & answer) {
    std::fprintf(stderr, "%s, after:\n%s\n", what, answer.c_str());
    std::abort();
}

const llama_vocab & vocabulary() {
    static const llama_vocab vocab;
    return vocab;
}

// Follows each stack of calls by itself, as llama.cpp does; gives up where these are many.
class PlainMatcher {
  public:
    explicit PlainMatcher(const Grammar & grammar) : grammar_(grammar) {
        for (const uint32_t start : grammar.alternatives(grammar.root())) {
            add({start}, stacks_);
        }
    }

    bool gave_up() const noexcept { return gave_up_; }
    bool may_end() const { return stacks_.count({}) != 0; }

    bool allows(uint32_t character) const {
        return std::any_of(stacks_.begin(), stacks_.end(),
                           [&](const Stack & stack) { return takes(stack, character); });
    }

    void accept(uint32_t character) {
        Stacks next;
        for (Stack stack : stacks_) {
            if (takes(stack, character)) {
                stack.back() = grammar_.after(stack.back());
                add(stack, next);
            }
        }
        stacks_ = std::move(next);
    }

  private:
    using Stack = std::vector<uint32_t>; // the position to go on at, last; before it those to return to
    using Stacks = std::set<Stack>;

    // Adds what a stack becomes when all its calls and returns are followed.
    void add(Stack first, Stacks & to) {
        Stacks seen;
        std::vector<Stack> todo{std::move(first)};
        while (!todo.empty() && !gave_up_) {
            Stack stack = std::move(todo.back());
            todo.pop_back();
            if (!seen.insert(stack).second) {
                continue;
            }
            gave_up_ = seen.size() > MAX_STACKS || to.size() > MAX_STACKS || stack.size() > MAX_DEPTH;
            if (stack.empty()) {
                to.insert(stack);
            } else if (grammar_.ends_at(stack.back())) {
                stack.pop_back();
                todo.push_back(std::move(stack));
            } else if (grammar_[stack.back()].type == LLAMA_GRETYPE_RULE_REF) {
                const uint32_t rule = grammar_[stack.back()].value;
                ++stack.back();
                for (const uint32_t start : grammar_.alternatives(rule)) {
                    todo.push_back(stack);
                    todo.back().push_back(start);
                }
            } else {
                gave_up_ = gave_up_ || grammar_.is_token(stack.back());
                to.insert(stack);
            }
        }
    }

    // By the elements themselves.
    bool takes(const Stack & stack, uint32_t character) const {
        if (stack.empty()) {
            return false;
        }
        bool found = false;
        const uint32_t begin = stack.back();
        for (uint32_t at = begin; at < grammar_.after(begin); ++at) {
            const bool range = grammar_[at + 1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
            const uint32_t low = grammar_[at].value;
            const uint32_t high = range ? grammar_[at + 1].value : low;
            found = found || grammar_[at].type == LLAMA_GRETYPE_CHAR_ANY || (low <= character && character <= high);
            at += range ? 1 : 0;
        }
        return found != (grammar_[begin].type == LLAMA_GRETYPE_CHAR_NOT);
    }

    const Grammar & grammar_;
    Stacks stacks_;
    bool gave_up_ = false;
};

// The tokens that may come next, in the order of a Sampler's questions.
std::vector<llama_token> allowed(GrammarMatcher & matcher, const std::string & answer) {
    matcher.begin();
    std::vector<llama_token> found;
    for (llama_token token = 0; token < static_cast<llama_token>(vocabulary().n_tokens()); ++token) {
        const bool may_begin = matcher.may_begin(token);
        if (matcher.allows(token)) {
            found.push_back(token);
            if (!may_begin) {
                fail("a token is allowed that may not begin", answer);
            }
        }
    }
    matcher.begin();
    return found;
}

// The same answer, in other tokens: each byte is one.
void check_cuts(const std::shared_ptr<const Grammar> & grammar, GrammarMatcher & walked, const std::string & answer) {
    GrammarMatcher matcher(grammar);
    for (const char byte : answer) {
        matcher.begin();
        const auto token = static_cast<llama_token>(static_cast<unsigned char>(byte));
        if (!matcher.allows(token)) {
            fail("a byte of an allowed token is not allowed", answer);
        }
        matcher.accept(token);
    }
    GrammarMatcher reader(grammar);
    const bool read = reader.read(answer); // false also if it took too much work
    const auto next = allowed(walked, answer);
    for (GrammarMatcher * other : {&matcher, read ? &reader : &matcher}) {
        if (other->may_end() != walked.may_end() || allowed(*other, answer) != next) {
            fail("an answer in other tokens has another continuation", answer);
        }
    }
}

uint32_t code_of(std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    const uint32_t start = character.size() == 1 ? first : first & (0x7FU >> character.size());
    return std::accumulate(character.begin() + 1, character.end(), start, [](uint32_t code, char byte) {
        return code << 6U | (static_cast<unsigned char>(byte) & 0x3FU);
    });
}

bool ends_in_a_character(const std::string & answer) {
    std::size_t at = 0;
    while (at < answer.size() && character_at(answer, at) != 0) {
        at += character_at(answer, at);
    }
    return at < answer.size();
}

// The same answer, and what may come next, by the plain matcher.
void check_language(const Grammar & grammar, GrammarMatcher & walked, const std::string & answer) {
    PlainMatcher plain(grammar);
    for (std::size_t at = 0; at < answer.size() && !plain.gave_up();) {
        const std::size_t size = character_at(answer, at);
        const uint32_t character = code_of(std::string_view(answer).substr(at, size));
        if (!plain.allows(character)) {
            fail("the grammar does not have the last character", answer.substr(0, at + size));
        }
        plain.accept(character);
        at += size;
    }
    if (plain.gave_up()) {
        return;
    }
    if (plain.may_end() != walked.may_end()) {
        fail("one matcher alone lets the answer end", answer);
    }
    walked.begin();
    for (llama_token character = 1; character < 128; ++character) {
        if (plain.allows(static_cast<uint32_t>(character)) != walked.allows(character)) {
            fail("one matcher alone allows a character", answer + static_cast<char>(character));
        }
    }
}

bool has_tokens(const Grammar & grammar) {
    for (uint32_t rule = 0; rule < grammar.n_rules(); ++rule) {
        for (uint32_t at = grammar.alternatives(rule).front(); grammar[at].type != LLAMA_GRETYPE_END; ++at) {
            if (grammar.is_token(at)) {
                return true;
            }
        }
    }
    return false;
}

void follow(const std::shared_ptr<const Grammar> & grammar, std::string_view choices) {
    const bool by_text = !has_tokens(*grammar);
    GrammarMatcher matcher(grammar);
    std::string answer;
    for (const char choice : choices.substr(0, MAX_TOKENS)) {
        const auto tokens = allowed(matcher, answer);
        if (tokens.empty()) {
            if (by_text && ends_in_a_character(answer)) {
                fail("a character has begun that cannot be completed", answer);
            }
            break;
        }
        const llama_token token = tokens[static_cast<unsigned char>(choice) % tokens.size()];
        matcher.accept(token);
        answer += vocabulary().token_to_piece(token);
    }
    if (by_text) {
        check_cuts(grammar, matcher, answer);
    }
    if (by_text && !ends_in_a_character(answer)) {
        check_language(*grammar, matcher, answer);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char *>(data), std::min(size, MAX_TEXT));
    const std::size_t end = std::min(input.find('\0'), input.size());
    std::string text;
    for (const std::string & character : characters(input.substr(0, end))) {
        text += character;
    }
    try {
        const auto grammar = std::make_shared<const Grammar>(&vocabulary(), text);
        follow(grammar, end < input.size() ? input.substr(end + 1) : CHOICES);
    } catch (const pyllmcancel::UsageError &) {
    } catch (const GrammarTooComplex &) {
    }
    return 0;
}
