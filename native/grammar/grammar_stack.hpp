#pragma once

#include "grammar/grammar.hpp"
#include "grammar/grammar_fuel.hpp"
#include "grammar/stamped_set.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pyllmcancel {

// The calls of rules that may have led to the present character.
//
// llama.cpp's own matcher keeps every stack of calls apart, and there are exponentially many of an ambiguous grammar.
// Here they share their parts (a graph-structured stack; M. Tomita, 1985; E. Scott and A. Johnstone, "GLL parsing", 2010):
// a node is a rule being matched from a certain character on, its edges say where to go on after it. Each pair of a
// position and a node is visited once a character, so time and memory for a character grow with the answer's length at
// worst, left recursion and empty rules included; and both have a limit.
class GrammarStack {
  public:
    static constexpr std::size_t MAX_PLACES = 1U << 14U; // for one character
    static constexpr std::size_t MAX_NODES = 1U << 22U;  // what a key has room for; fuel allows fewer

    // A position in the grammar, in a certain call.
    struct Place {
        uint32_t position;
        uint32_t node;
    };
    // The set of all that may come next.
    struct Front {
        std::vector<Place> places; // that wait for a character or a token
        bool ends = false;         // or nothing may
        bool has_tokens = false;   // some wait for a token

        bool is_empty() const noexcept { return places.empty() && !ends; }
    };

    // While one lives, additions to the stack are tentative: they are removed with it.
    class Try {
      public:
        explicit Try(GrammarStack & stack);
        Try(const Try &) = delete;
        Try & operator=(const Try &) = delete;
        ~Try();

      private:
        GrammarStack & stack_;
        std::ptrdiff_t n_nodes_, n_edges_;
    };

    // Both outlive the stack.
    GrammarStack(const Grammar & grammar, GrammarFuel & fuel);

    // The beginning of the grammar.
    Front begin();

    // Makes `to` what may come after those places of `from` for which `takes` is true. Throws as GrammarFuel::burn().
    template <typename Takes> void advance(const Front & from, Front & to, Takes takes) {
        start(to);
        for (const Place & place : from.places) {
            if (takes(place)) {
                push({grammar_.after(place.position), place.node});
            }
        }
        close(to);
    }

    // Nodes and edges.
    std::size_t size() const noexcept { return nodes_.size() + edges_.size(); }

    // Forgets everything that cannot be reached from `front`, and renumbers the rest, also in `front`.
    void tidy(Front & front);

  private:
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

    void start(Front & to);
    void close(Front & to);
    void push(Place place);
    void finish(uint32_t node, Front & to);
    void call(uint32_t rule, Place back);
    uint32_t callee(uint32_t rule);
    std::vector<bool> reachable(const Front & front) const;

    const Grammar & grammar_;
    GrammarFuel & fuel_;
    std::vector<Node> nodes_; // the first is the root's
    std::vector<Edge> edges_; // a node gets no more of them after `born`, so what a try has added can be cut off again
    uint64_t now_ = 0; // number of the character; every try has new ones

    // For a character.
    std::vector<Place> work_;
    StampedSet seen_;
    std::vector<std::pair<uint64_t, uint32_t>> callees_; // by rule: its node, if it is born now
};

} // namespace pyllmcancel
