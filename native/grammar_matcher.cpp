#include "grammar_matcher.hpp"

#include "errors.hpp"
#include "llama-vocab.h"

#include <algorithm>

namespace pyllmcancel {
namespace {

constexpr uint32_t NONE = UINT32_MAX;
constexpr int64_t LOOK_EVERY = 1024; // units between two looks at the flag

static_assert(Grammar::MOST_ELEMENTS <= 1U << 20U && GrammarMatcher::MOST_NODES <= 1U << 22U, "keys have 64 bits");

uint64_t key_of(uint32_t position, uint32_t node) { return position | (static_cast<uint64_t>(node) << 20U); }

// Of an edge, which no place has.
uint64_t key_of(uint32_t rule, uint32_t position, uint32_t node) {
    return (uint64_t{1} << 63U) | key_of(position, node) << 20U | rule;
}

// Takes a byte into a character; false for what is not UTF-8.
bool take_byte(llama_partial_utf8 & partial, unsigned char byte) {
    if (partial.n_remain > 0) {
        partial.value = partial.value << 6U | (byte & 0x3FU);
        // The first of three or four shows what could be shorter, half of a surrogate pair, or beyond Unicode.
        const bool none = (partial.n_remain == 3 && (partial.value < 0x10U || partial.value > 0x10FU)) ||
                          (partial.n_remain == 2 && (partial.value < 0x20U || partial.value / 0x20U == 0x1BU));
        --partial.n_remain;
        return (byte & 0xC0U) == 0x80U && !none;
    }
    const int length = byte < 0x80U ? 1 : byte < 0xC2U ? 0 : byte < 0xE0U ? 2 : byte < 0xF0U ? 3 : byte < 0xF5U ? 4 : 0;
    partial = {length == 1 ? byte : byte & (0x7FU >> static_cast<unsigned>(length)), length - 1};
    return length > 0;
}

} // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), callees_(grammar_->n_rules()) {
    possible_.fill(-1);
    try {
        start(front_);
        callee(grammar_->root());
        close(front_);
    } catch (const GrammarTooComplex &) {
        throw UsageError("the grammar has more ways to begin than can be followed");
    }
    if (front_.places.empty() && !front_.ends) {
        throw UsageError("the grammar allows nothing at all");
    }
}

GrammarMatcher::Try::Try(GrammarMatcher & matcher)
    : matcher_(matcher), n_nodes_(static_cast<std::ptrdiff_t>(matcher.nodes_.size())),
      n_edges_(static_cast<std::ptrdiff_t>(matcher.edges_.size())) {}

GrammarMatcher::Try::~Try() {
    matcher_.nodes_.erase(matcher_.nodes_.begin() + n_nodes_, matcher_.nodes_.end());
    matcher_.edges_.erase(matcher_.edges_.begin() + n_edges_, matcher_.edges_.end());
}

void GrammarMatcher::begin(const CancelFlag * flag) noexcept {
    flag_ = flag;
    fuel_ = FUEL;
}

bool GrammarMatcher::may_begin(llama_token token) {
    const std::string & piece = grammar_->vocab()->token_to_piece(token);
    const bool by_character = partial_.n_remain == 0 && !front_.has_tokens && !piece.empty();
    return !by_character || !rules_out(static_cast<unsigned char>(piece[0]));
}

bool GrammarMatcher::allows(llama_token token) {
    burn(1);
    const std::string & piece = grammar_->vocab()->token_to_piece(token);
    if (piece.empty() || piece.find('\0') != std::string::npos) {
        return false;
    }
    if (front_.has_tokens) {
        burn(static_cast<uint32_t>(front_.places.size()));
        const auto matches = [&](Place place) { return takes_token(place, token); };
        if (std::any_of(front_.places.begin(), front_.places.end(), matches)) {
            return true;
        }
    }
    const Try undone(*this);
    llama_partial_utf8 partial = partial_;
    return advance_over(piece, partial) != nullptr;
}

void GrammarMatcher::accept(llama_token token) {
    Front next;
    advance_by_token(token, next);
    const bool matched = next.ends || !next.places.empty();
    llama_partial_utf8 partial = partial_;
    const Front * by_text = advance_over(grammar_->vocab()->token_to_piece(token), partial);
    // As a token it is whole, even where its text ends in the middle of a character.
    if (by_text != nullptr && !(matched && partial.n_remain > 0)) {
        next.places.insert(next.places.end(), by_text->places.begin(), by_text->places.end());
        next.ends = next.ends || by_text->ends;
        next.has_tokens = next.has_tokens || by_text->has_tokens;
        partial_ = partial;
    }
    front_ = std::move(next);
    possible_.fill(-1);
    if (nodes_.size() + edges_.size() > 2 * n_kept_ + 1024) {
        forget_unreachable();
    }
    if (n_kept_ > MOST_KEPT) {
        throw GrammarTooComplex();
    }
}

// What may come after a text; nullptr if the text may not. The result is good until the next call.
const GrammarMatcher::Front * GrammarMatcher::advance_over(const std::string & piece, llama_partial_utf8 & partial) {
    const Front * from = &front_;
    for (const char byte : piece) {
        if (!take_byte(partial, static_cast<unsigned char>(byte))) {
            return nullptr;
        }
        if (partial.n_remain > 0) {
            continue;
        }
        if (from == &front_ && rules_out(partial.value)) {
            return nullptr;
        }
        Front & to = scratch_[from == &scratch_[0] ? 1 : 0];
        advance(*from, partial.value, to);
        if (to.places.empty() && !to.ends) {
            return nullptr;
        }
        from = &to;
    }
    return partial.n_remain == 0 || any_could_be(*from, partial) ? from : nullptr;
}

// Most candidates fail by their first character, and most of those share it with many others.
bool GrammarMatcher::rules_out(uint32_t first_character) {
    if (first_character >= possible_.size()) {
        return false;
    }
    int8_t & known = possible_[first_character];
    if (known < 0) {
        const auto matches = [&](Place place) { return takes(place, first_character, first_character); };
        known = std::any_of(front_.places.begin(), front_.places.end(), matches) ? 1 : 0;
    }
    return known == 0;
}

bool GrammarMatcher::takes(Place place, uint32_t low, uint32_t high) {
    burn(grammar_->after(place.position) - place.position);
    return !grammar_->is_token(place.position) && grammar_->matches(place.position, low, high);
}

bool GrammarMatcher::takes_token(Place place, llama_token token) const noexcept {
    return partial_.n_remain == 0 && grammar_->is_token(place.position) &&
           grammar_->matches_token(place.position, token);
}

bool GrammarMatcher::any_could_be(const Front & front, llama_partial_utf8 partial) {
    const auto n_bits = 6U * static_cast<unsigned>(partial.n_remain);
    // The shortest form is the only one: what has 3 or 4 bytes does not fit into fewer.
    const uint32_t least = partial.n_remain == 1 ? 0x80U : partial.n_remain == 2 ? 0x800U : 0x10000U;
    const uint32_t low = std::max(partial.value << n_bits, least);
    const uint32_t high = (partial.value << n_bits) | ((1U << n_bits) - 1U);
    return std::any_of(front.places.begin(), front.places.end(), [&](Place place) { return takes(place, low, high); });
}

void GrammarMatcher::advance(const Front & from, uint32_t character, Front & to) {
    start(to);
    for (const Place & place : from.places) {
        if (takes(place, character, character)) {
            push({grammar_->after(place.position), place.node});
        }
    }
    close(to);
}

void GrammarMatcher::advance_by_token(llama_token token, Front & to) {
    start(to);
    for (const Place & place : front_.places) {
        if (takes_token(place, token)) {
            push({grammar_->after(place.position), place.node});
        }
    }
    close(to);
}

void GrammarMatcher::start(Front & to) {
    ++now_;
    seen_.clear();
    work_.clear();
    to.places.clear();
    to.ends = false;
    to.has_tokens = false;
}

// Follows calls and returns until every place waits for a character or a token.
void GrammarMatcher::close(Front & to) {
    while (!work_.empty()) {
        const Place place = work_.back();
        work_.pop_back();
        if (grammar_->ends_at(place.position)) {
            finish(place.node, to);
        } else if ((*grammar_)[place.position].type == LLAMA_GRETYPE_RULE_REF) {
            call((*grammar_)[place.position].value, {place.position + 1, place.node});
        } else {
            to.places.push_back(place);
            to.has_tokens = to.has_tokens || grammar_->is_token(place.position);
        }
    }
}

void GrammarMatcher::push(Place place) {
    burn(1);
    if (!seen_.insert(key_of(place.position, place.node))) {
        return;
    }
    if (seen_.size() > MOST_PLACES) {
        throw GrammarTooComplex();
    }
    work_.push_back(place);
}

void GrammarMatcher::finish(uint32_t node, Front & to) {
    to.ends = to.ends || node == 0;
    nodes_[node].done = nodes_[node].born == now_;
    for (uint32_t edge = nodes_[node].first_edge; edge != NONE; edge = edges_[edge].next) {
        push(edges_[edge].back);
    }
}

void GrammarMatcher::call(uint32_t rule, Place back) {
    const Node & caller = nodes_[back.node];
    const bool last = grammar_->ends_at(back.position) && back.node != 0 && caller.born < now_;
    // A list that is written with its rest at its end would grow by a node for each item: the call at the end of a rule
    // that has one way back goes back there itself.
    if (last && caller.first_edge != NONE && edges_[caller.first_edge].next == NONE) {
        back = edges_[caller.first_edge].back;
    }
    const uint32_t node = callee(rule);
    burn(1);
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
uint32_t GrammarMatcher::callee(uint32_t rule) {
    auto & [born, node] = callees_[rule];
    if (born != now_) {
        if (nodes_.size() >= MOST_NODES) {
            throw GrammarTooComplex();
        }
        born = now_;
        node = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back({now_, NONE, false});
        for (const uint32_t position : grammar_->alternatives(rule)) {
            push({position, node});
        }
    }
    return node;
}

void GrammarMatcher::burn(uint32_t units) {
    // As often as the fuel passes a multiple, however large the units are.
    const int64_t before = fuel_ / LOOK_EVERY;
    fuel_ -= units;
    if (fuel_ < 0) {
        throw GrammarTooComplex();
    }
    if (fuel_ / LOOK_EVERY != before && flag_ != nullptr && flag_->raised()) {
        throw GrammarInterrupted();
    }
}

std::vector<bool> GrammarMatcher::reachable() const {
    std::vector<bool> found(nodes_.size());
    std::vector<uint32_t> todo;
    const auto reach = [&](uint32_t node) {
        if (!found[node]) {
            found[node] = true;
            todo.push_back(node);
        }
    };
    reach(0);
    for (const Place & place : front_.places) {
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

// Nodes and edges are numbered anew, in their order.
void GrammarMatcher::forget_unreachable() {
    const std::vector<bool> kept = reachable();
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
    for (Place & place : front_.places) {
        place.node = number[place.node];
    }
    nodes_ = std::move(nodes);
    edges_ = std::move(edges);
    n_kept_ = nodes_.size() + edges_.size();
}

} // namespace pyllmcancel
