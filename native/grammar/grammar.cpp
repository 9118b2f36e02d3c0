#include "grammar/grammar.hpp"

#include "grammar/grammar_check.hpp"
#include "platform/errors.hpp"

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

Grammar::Grammar(const llama_vocab * vocab, const std::string & text) : vocab_(vocab) {
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
    if (n_elements > MAX_ELEMENTS) {
        throw UsageError("the grammar has more than " + std::to_string(MAX_ELEMENTS) + " elements");
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
    ranges_.resize(n_elements);
    n_ranges_.resize(n_elements);
    for (uint32_t at = 0; at < n_elements; at = after_[at]) {
        lay_out_class(at);
    }
}

// The characters of the class at a position, if there is one.
void Grammar::lay_out_class(uint32_t position) {
    std::vector<Range> found;
    for (uint32_t at = position; at < after_[position]; ++at) {
        const llama_grammar_element & element = elements_[at];
        switch (element.type) {
            case LLAMA_GRETYPE_CHAR:
            case LLAMA_GRETYPE_CHAR_NOT:
            case LLAMA_GRETYPE_CHAR_ALT: found.push_back({element.value, element.value}); break;
            case LLAMA_GRETYPE_CHAR_RNG_UPPER: found.back().high = element.value; break;
            case LLAMA_GRETYPE_CHAR_ANY: found.push_back({0, UINT32_MAX}); break;
            default: return;
        }
    }
    found.erase(std::remove_if(found.begin(), found.end(), [](Range one) { return one.high < one.low; }), found.end());
    std::sort(found.begin(), found.end(), [](Range one, Range other) { return one.low < other.low; });
    Range * const begin = ranges_.data() + position;
    Range * end = begin;
    for (const Range one : found) {
        if (end != begin && (end[-1].high == UINT32_MAX || one.low <= end[-1].high + 1)) {
            end[-1].high = std::max(end[-1].high, one.high);
        } else {
            *end++ = one;
        }
    }
    n_ranges_[position] = static_cast<uint32_t>(end - begin);
}

bool Grammar::matches(uint32_t position, uint32_t low, uint32_t high) const noexcept {
    const Range * const begin = ranges_.data() + position;
    const Range * const end = begin + n_ranges_[position];
    const Range * const found =
        std::lower_bound(begin, end, low, [](Range one, uint32_t value) { return one.high < value; });
    if (elements_[position].type == LLAMA_GRETYPE_CHAR_NOT) {
        return found == end || low < found->low || found->high < high;
    }
    return found != end && found->low <= high;
}

uint32_t Grammar::cost(uint32_t position) const noexcept {
    uint32_t n_halvings = 1;
    for (uint32_t left = n_ranges_[position]; left > 1; left /= 2) {
        ++n_halvings;
    }
    return n_halvings;
}

} // namespace pyllmcancel
