#pragma once

#include "cancel_flag.hpp"
#include "grammar.hpp"
#include "stamped_set.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pyllmcancel {

// To say what may come would take more time, or memory, than one answer may have.
struct GrammarTooComplex : std::runtime_error {
    GrammarTooComplex() : std::runtime_error("the grammar is too ambiguous") {}
};

// The request was cancelled meanwhile.
struct GrammarInterrupted : std::runtime_error {
    GrammarInterrupted() : std::runtime_error("the request was cancelled") {}
};

// One answer's place in a grammar.
//
// llama.cpp's own matcher keeps every stack of calls that may have led to the present character, and there are exponentially
// many of an ambiguous grammar. Here they share their parts (a graph-structured stack; M. Tomita, 1985; E. Scott and
// A. Johnstone, "GLL parsing", 2010): a node is a rule being matched from a certain character on, its edges say where to
// go on after it. Each pair of a position and a node is visited once a character, so time and memory for a character grow
// with the answer's length at worst, left recursion and empty rules included; and both have a limit.
class GrammarMatcher {
  public:
    static constexpr int64_t FUEL = int64_t{1} << 19U; // between two calls of begin(); a unit is some ten nanoseconds
    static constexpr std::size_t MOST_PLACES = 1U << 14U; // for one character
    static constexpr std::size_t MOST_KEPT = 1U << 17U; // nodes and edges, between two tokens
    static constexpr std::size_t MOST_NODES = 1U << 22U; // ever: what a key has room for

    // Throws UsageError for a grammar that allows nothing, or begins in too many ways.
    explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

    std::shared_ptr<const Grammar> grammar() const noexcept { return grammar_; }

    // Until the next call everything together has so much fuel, and ends when the flag is raised.
    void begin(const CancelFlag * flag) noexcept;

    // Whether the answer may be over.
    bool may_end() const noexcept { return front_.ends && partial_.n_remain == 0; }

    // Whether a token might be allowed, going by its first character: asked about a whole vocabulary, that takes a
    // millisecond or two.
    bool may_begin(llama_token token);

    // Whether a token that does not end the answer may come next. Throws GrammarTooComplex, GrammarInterrupted.
    bool allows(llama_token token);

    // Take note of a token that is allowed. Throws as allows(); the matcher must not be used any further then.
    void accept(llama_token token);

  private:
    // A position in the grammar, in a certain call.
    struct Place {
        uint32_t position;
        uint32_t node;
    };
    // A rule that is being matched since the character number `born`.
    struct Node {
        uint64_t born;
        uint32_t first_edge;
        bool done; // matched at `born` already, by nothing
    };
    struct Edge {
        Place back;
        uint32_t next;
    };
    // Everything that may come next.
    struct Front {
        std::vector<Place> places; // that wait for a character or a token
        bool ends = false; // or nothing may
        bool has_tokens = false; // some wait for a token
    };

    // Cuts off again what it has added to the nodes.
    class Try {
      public:
        explicit Try(GrammarMatcher & matcher);
        Try(const Try &) = delete;
        Try & operator=(const Try &) = delete;
        ~Try();

      private:
        GrammarMatcher & matcher_;
        std::ptrdiff_t n_nodes_, n_edges_;
    };

    const Front * advance_over(const std::string & piece, llama_partial_utf8 & partial);
    bool rules_out(uint32_t first_character);
    bool takes(Place place, uint32_t low, uint32_t high);
    bool takes_token(Place place, llama_token token) const noexcept;
    void advance(const Front & from, uint32_t character, Front & to);
    void advance_by_token(llama_token token, Front & to);
    void start(Front & to);
    void close(Front & to);
    void push(Place place);
    void finish(uint32_t node, Front & to);
    void call(uint32_t rule, Place back);
    uint32_t callee(uint32_t rule);
    bool any_could_be(const Front & front, llama_partial_utf8 partial);
    void burn(uint32_t units);
    void forget_unreachable();
    std::vector<bool> reachable() const;

    std::shared_ptr<const Grammar> grammar_;
    std::vector<Node> nodes_; // the first is the root's
    std::vector<Edge> edges_; // a node gets no more of them after `born`, so what a try has added can be cut off again
    Front front_;
    llama_partial_utf8 partial_{0, 0}; // of a character whose first bytes ended the last token
    uint64_t now_ = 0; // number of the character; every try has new ones
    std::size_t n_kept_ = 0; // nodes and edges, when they were last tidied

    // For a character.
    std::vector<Place> work_;
    Front scratch_[2];
    StampedSet seen_;
    std::vector<std::pair<uint64_t, uint32_t>> callees_; // by rule: its node, if it is born now

    std::array<int8_t, 128> possible_; // whether a token may begin with a character, if that is known: 1, 0 or -1
    const CancelFlag * flag_ = nullptr;
    int64_t fuel_ = FUEL;
};

} // namespace pyllmcancel
