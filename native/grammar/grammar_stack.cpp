#include "grammar/grammar_stack.hpp"

#include <utility>

namespace pyllmcancel {
namespace {

constexpr uint32_t NONE = UINT32_MAX;

static_assert(Grammar::MAX_ELEMENTS <= 1U << 20U && GrammarStack::MAX_NODES <= 1U << 22U, "keys have 64 bits");

uint64_t key_of(uint32_t position, uint32_t node) { return position | (static_cast<uint64_t>(node) << 20U); }

// The mark of an edge, which no place has.
uint64_t key_of(uint32_t rule, uint32_t position, uint32_t node) {
    return (uint64_t{1} << 63U) | key_of(position, node) << 20U | rule;
}

} // namespace

GrammarStack::Try::Try(GrammarStack & stack)
    : stack_(stack), n_nodes_(static_cast<std::ptrdiff_t>(stack.nodes_.size())),
      n_edges_(static_cast<std::ptrdiff_t>(stack.edges_.size())) {}

GrammarStack::Try::~Try() {
    stack_.nodes_.erase(stack_.nodes_.begin() + n_nodes_, stack_.nodes_.end());
    stack_.edges_.erase(stack_.edges_.begin() + n_edges_, stack_.edges_.end());
}

GrammarStack::GrammarStack(const Grammar & grammar, GrammarFuel & fuel)
    : grammar_(grammar), fuel_(fuel), callees_(grammar.n_rules()) {}

GrammarStack::Front GrammarStack::begin() {
    Front front;
    start(front);
    callee(grammar_.root());
    close(front);
    return front;
}

void GrammarStack::start(Front & to) {
    ++now_;
    seen_.clear();
    work_.clear();
    to.places.clear();
    to.ends = false;
    to.has_tokens = false;
}

// Follows calls and returns until every place waits for a character or a token.
void GrammarStack::close(Front & to) {
    while (!work_.empty()) {
        const Place place = work_.back();
        work_.pop_back();
        if (grammar_.ends_at(place.position)) {
            finish(place.node, to);
        } else if (grammar_[place.position].type == LLAMA_GRETYPE_RULE_REF) {
            call(grammar_[place.position].value, {place.position + 1, place.node});
        } else {
            to.places.push_back(place);
            to.has_tokens = to.has_tokens || grammar_.is_token(place.position);
        }
    }
}

void GrammarStack::push(Place place) {
    fuel_.burn(1);
    if (!seen_.insert(key_of(place.position, place.node))) {
        return;
    }
    if (seen_.size() > MAX_PLACES) {
        throw GrammarTooComplex();
    }
    work_.push_back(place);
}

void GrammarStack::finish(uint32_t node, Front & to) {
    to.ends = to.ends || node == 0;
    nodes_[node].done = nodes_[node].born == now_;
    for (uint32_t edge = nodes_[node].first_edge; edge != NONE; edge = edges_[edge].next) {
        push(edges_[edge].back);
    }
}

void GrammarStack::call(uint32_t rule, Place back) {
    const Node & caller = nodes_[back.node];
    const bool last = grammar_.ends_at(back.position) && back.node != 0 && caller.born < now_;
    // A list that is written with its rest at its end would grow by a node for each item: the call at the end of a rule
    // that has one way back goes back there itself.
    if (last && caller.first_edge != NONE && edges_[caller.first_edge].next == NONE) {
        back = edges_[caller.first_edge].back;
    }
    const uint32_t node = callee(rule);
    fuel_.burn(1);
    if (!seen_.insert(key_of(rule, back.position, back.node))) {
        return;
    }
    edges_.push_back({back, nodes_[node].first_edge});
    nodes_[node].first_edge = static_cast<uint32_t>(edges_.size() - 1);
    if (nodes_[node].done) {
        push(back);
    }
}

// The node of a rule that is called now.
uint32_t GrammarStack::callee(uint32_t rule) {
    auto & [born, node] = callees_[rule];
    if (born != now_) {
        born = now_;
        node = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back({now_, NONE, false});
        for (const uint32_t position : grammar_.alternatives(rule)) {
            push({position, node});
        }
    }
    return node;
}

std::vector<bool> GrammarStack::reachable(const Front & front) const {
    std::vector<bool> found(nodes_.size());
    std::vector<uint32_t> todo;
    const auto reach = [&](uint32_t node) {
        if (!found[node]) {
            found[node] = true;
            todo.push_back(node);
        }
    };
    reach(0);
    for (const Place & place : front.places) {
        reach(place.node);
    }
    while (!todo.empty()) {
        const uint32_t node = todo.back();
        todo.pop_back();
        for (uint32_t edge = nodes_[node].first_edge; edge != NONE; edge = edges_[edge].next) {
            reach(edges_[edge].back.node);
        }
    }
    return found;
}

// In their order.
void GrammarStack::tidy(Front & front) {
    const std::vector<bool> kept = reachable(front);
    std::vector<uint32_t> number(nodes_.size());
    uint32_t n_nodes = 0;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
        number[node] = n_nodes;
        n_nodes += kept[node] ? 1U : 0U;
    }
    std::vector<Node> nodes;
    std::vector<Edge> edges;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
        if (!kept[node]) {
            continue;
        }
        nodes.push_back({nodes_[node].born, NONE, nodes_[node].done});
        for (uint32_t edge = nodes_[node].first_edge; edge != NONE; edge = edges_[edge].next) {
            const Place back = edges_[edge].back;
            edges.push_back({{back.position, number[back.node]}, nodes.back().first_edge});
            nodes.back().first_edge = static_cast<uint32_t>(edges.size() - 1);
        }
    }
    for (Place & place : front.places) {
        place.node = number[place.node];
    }
    nodes_ = std::move(nodes);
    edges_ = std::move(edges);
}

} // namespace pyllmcancel
