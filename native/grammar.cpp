#include "grammar.hpp"

#include "errors.hpp"
#include "grammar_check.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

constexpr std::size_t LONGEST_MESSAGE = 200; // llama.cpp quotes the rest of the text

// After blanks and comments, which parse_rule() skips behind a rule only.
std::size_t first_rule(const std::string & text) {
    std::size_t at = text.find_first_not_of(" \t\r\n");
    while (at < text.size() && text[at] == '#') {
        at = text.find_first_not_of("\r\n", std::min(text.find_first_of("\r\n", at), text.size()));
        at = text.find_first_not_of(" \t\r\n", std::min(at, text.size()));
    }
    return std::min(at, text.size());
}

// llama.cpp's parse() writes the whole text to the standard error when it fails, and says nothing to its caller.
void parse(llama_grammar_parser & parser, const std::string & text) {
    try {
        for (const char * at = text.c_str() + first_rule(text); *at != '\0';) {
            at = parser.parse_rule(at);
        }
    } catch (const std::exception & error) {
        throw UsageError("the grammar could not be parsed: " + std::string(error.what()).substr(0, LONGEST_MESSAGE));
    }
}

} // namespace

Grammar::Grammar(const Model & model, const std::string & text) : vocab_(model.vocab()) {
    check_grammar(text);
    llama_grammar_parser parser(vocab_);
    parse(parser, text);
    const auto root = parser.symbol_ids.find("root");
    if (root == parser.symbol_ids.end()) {
        throw UsageError("the grammar could not be parsed: it has no rule `root`");
    }
    for (const auto & [name, rule] : parser.symbol_ids) {
        if (rule >= parser.rules.size() || parser.rules[rule].empty()) {
            throw UsageError("the grammar could not be parsed: it has no rule `" + name + "`");
        }
    }
    root_ = root->second;
    lay_out(parser.rules);
}

void Grammar::lay_out(const llama_grammar_rules & rules) {
    std::size_t n_elements = 0;
    for (const llama_grammar_rule & rule : rules) {
        n_elements += rule.size();
    }
    if (n_elements > MOST_ELEMENTS) {
        throw UsageError("the grammar has more than " + std::to_string(MOST_ELEMENTS) + " elements");
    }
    elements_.reserve(n_elements);
    for (const llama_grammar_rule & rule : rules) {
        std::vector<uint32_t> & starts = alternatives_.emplace_back();
        starts.push_back(static_cast<uint32_t>(elements_.size()));
        for (const llama_grammar_element & element : rule) {
            elements_.push_back(element);
            if (element.type == LLAMA_GRETYPE_ALT) {
                starts.push_back(static_cast<uint32_t>(elements_.size()));
            }
        }
    }
    after_.resize(n_elements);
    for (std::size_t at = n_elements; at-- > 0;) {
        const bool in_class = at + 1 < n_elements && (elements_[at + 1].type == LLAMA_GRETYPE_CHAR_ALT ||
                                                      elements_[at + 1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER);
        after_[at] = in_class ? after_[at + 1] : static_cast<uint32_t>(at + 1);
    }
}

bool Grammar::matches(uint32_t position, uint32_t low, uint32_t high) const noexcept {
    const bool negated = elements_[position].type == LLAMA_GRETYPE_CHAR_NOT;
    for (uint32_t at = position;; ++at) {
        const llama_grammar_element & element = elements_[at];
        const bool is_range = elements_[at + 1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        const uint32_t upper = is_range ? elements_[at + 1].value : element.value;
        // Of a character that is only known in part, a negated class must not have all that it may become.
        const bool hit = negated ? element.value <= low && high <= upper : element.value <= high && low <= upper;
        if (hit || element.type == LLAMA_GRETYPE_CHAR_ANY) {
            return !negated;
        }
        at += is_range ? 1 : 0;
        if (elements_[at + 1].type != LLAMA_GRETYPE_CHAR_ALT) {
            return negated;
        }
    }
}

} // namespace pyllmcancel
