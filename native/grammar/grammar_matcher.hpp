#pragma once

#include "grammar/grammar.hpp"
#include "grammar/grammar_fuel.hpp"
#include "grammar/grammar_stack.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace pyllmcancel {

// The tokens that a grammar allows next, by the characters of their texts or as tokens; the state of one answer.
class GrammarMatcher {
  public:
    static constexpr std::size_t MAX_KEPT = 1U << 17U; // nodes and edges, between two tokens

    // Throws UsageError for a grammar that allows nothing, or begins in too many ways.
    explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
    GrammarMatcher(const GrammarMatcher &) = delete;
    GrammarMatcher & operator=(const GrammarMatcher &) = delete;

    std::shared_ptr<const Grammar> grammar() const noexcept { return grammar_; }

    // Called at the start of each sampling: fills the fuel.
    void begin() noexcept { fuel_.fill(); }

    // Returns whether the answer may be over.
    bool may_end() const noexcept { return front_.ends && partial_.n_remain == 0; }

    // Returns whether a token might be allowed, by its first character: one or two milliseconds for a whole vocabulary.
    bool may_begin(llama_token token);

    // Returns whether a token that does not end the answer may come next. Throws GrammarTooComplex.
    bool allows(llama_token token);

    // Takes a token that is allowed. Throws as allows(); the matcher must not be used any further then.
    void accept(llama_token token);

    // Takes a text of any length, if it is allowed; else the matcher must not be used any further.
    bool read(const std::string & text);

  private:
    using Front = GrammarStack::Front;
    using Place = GrammarStack::Place;

    const Front * advance_over(const std::string & piece, llama_partial_utf8 & partial);
    void tidy();
    bool rules_out(uint32_t first_character);
    bool takes(Place place, uint32_t low, uint32_t high);
    bool takes_token(Place place, llama_token token) const noexcept;
    bool any_could_be(const Front & front, llama_partial_utf8 partial);

    std::shared_ptr<const Grammar> grammar_;
    GrammarFuel fuel_;
    GrammarStack stack_;
    Front front_;
    Front scratch_[2];
    llama_partial_utf8 partial_{0, 0};   // of a character whose first bytes ended the last token
    std::size_t n_kept_ = 0;             // the stack's size, when it was last tidied
    std::array<int8_t, 128> possible_{}; // whether a token may begin with a character, if that is known: 1, 0 or -1
};

} // namespace pyllmcancel
