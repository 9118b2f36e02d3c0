#pragma once

#include "llama.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace pyllmcancel {

// The triggers of a grammar that is inactive while an answer is free text. Immutable: the choices of a request share
// them.
class GrammarTriggers {
  public:
    using Pairs = std::vector<std::pair<std::string, std::string>>;

    static constexpr std::size_t LONGEST = 1024; // bytes of one
    static constexpr std::size_t MAX_TRIGGERS = 1024;

    // Pairs of kind and value: a `token` by its number, a `word`, a `pattern` (ECMAScript) that is searched, and a
    // `pattern_full` that all of the text must match. Throws UsageError for what is none of these.
    GrammarTriggers(const Pairs & triggers, int32_t n_vocab);

    bool has_token(llama_token token) const noexcept;

    // The position at which the grammar begins to read: a match's first capture that is not empty, or the match; npos
    // without a match. Only the last `n_new` bytes of the text are new since the last call. `begins`: the text is that
    // of the whole answer.
    std::size_t find(const std::string & text, std::size_t n_new, bool begins) const;

  private:
    struct Pattern {
        std::regex regex;
        std::string start; // what each match begins with, literally
        bool anchored;     // at the beginning of the answer
    };

    void add_pattern(const std::string & pattern);
    static std::size_t match_at(const Pattern & pattern, const std::string & text, std::size_t place, bool begins);
    static std::size_t find_pattern(const Pattern & pattern, const std::string & text, bool begins);

    std::vector<llama_token> tokens_;
    std::vector<std::string> words_;
    std::vector<Pattern> patterns_;
};

// The marks of reasoning, inside which no trigger counts.
struct ThinkingMarks {
    std::string start; // empty for none
    std::vector<std::string> ends;
};

// Listens to one answer for a trigger. Time and memory for each token are limited.
class GrammarAlarm {
  public:
    // `prompt` is the beginning of the answer that the prompt contains.
    GrammarAlarm(std::shared_ptr<const GrammarTriggers> triggers, ThinkingMarks marks, const std::string & prompt);

    // Takes a token. Returns the text that the grammar must read first, if a trigger was found.
    std::optional<std::string> hear(llama_token token, const std::string & piece);

  private:
    bool leave_thinking(std::size_t n_new);
    void forget_before(std::size_t place);

    std::shared_ptr<const GrammarTriggers> triggers_;
    ThinkingMarks marks_;
    std::string text_; // the last of the answer
    bool begins_ = true; // … which is all of it
    bool thinking_ = false;
};

} // namespace pyllmcancel
