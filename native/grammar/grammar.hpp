#pragma once

#include "llama-grammar.h"

#include <cstdint>
#include <string>
#include <vector>

namespace pyllmcancel {

// A GBNF text as llama.cpp's own parser reads it, laid out for a GrammarMatcher. Immutable: the choices of a request
// share one.
//
// Positions are numbers of elements; the elements of a rule follow each other, its alternatives parted by ALT, END last.
class Grammar {
  public:
    static constexpr std::size_t MAX_ELEMENTS = std::size_t{1} << 20U;

    // The vocabulary outlives the grammar. Throws UsageError for a text that cannot be parsed, or is too large.
    Grammar(const llama_vocab * vocab, const std::string & text);

    const llama_vocab * vocab() const noexcept { return vocab_; }
    uint32_t root() const noexcept { return root_; }
    std::size_t n_rules() const noexcept { return alternatives_.size(); }
    const llama_grammar_element & operator[](uint32_t position) const noexcept { return elements_[position]; }

    // The positions at which the alternatives of a rule begin.
    const std::vector<uint32_t> & alternatives(uint32_t rule) const noexcept { return alternatives_[rule]; }

    bool ends_at(uint32_t position) const noexcept {
        const llama_gretype type = elements_[position].type;
        return type == LLAMA_GRETYPE_END || type == LLAMA_GRETYPE_ALT;
    }

    bool is_token(uint32_t position) const noexcept {
        const llama_gretype type = elements_[position].type;
        return type == LLAMA_GRETYPE_TOKEN || type == LLAMA_GRETYPE_TOKEN_NOT;
    }

    bool matches_token(uint32_t position, llama_token token) const noexcept {
        const bool same = elements_[position].value == static_cast<uint32_t>(token);
        return same == (elements_[position].type == LLAMA_GRETYPE_TOKEN);
    }

    // Returns whether the character class at a position has any character in [low, high], or lacks one if it is
    // negated.
    bool matches(uint32_t position, uint32_t low, uint32_t high) const noexcept;

    // Work of matches(), in units of fuel. A class may have thousands of ranges: a list of the characters of a script.
    uint32_t cost(uint32_t position) const noexcept;

    // The position after the class, or the token, at a position.
    uint32_t after(uint32_t position) const noexcept { return after_[position]; }

  private:
    struct Range {
        uint32_t low, high; // characters
    };

    void lay_out(const llama_grammar_rules & rules);
    void lay_out_class(uint32_t position);

    const llama_vocab * vocab_;
    uint32_t root_ = 0;
    std::vector<llama_grammar_element> elements_;
    std::vector<uint32_t> after_;    // by position
    std::vector<Range> ranges_;      // from a class's position on: its own, in order, none of which touches the next
    std::vector<uint32_t> n_ranges_; // by position
    std::vector<std::vector<uint32_t>> alternatives_; // by rule
};

} // namespace pyllmcancel
