#include "grammar/grammar_matcher.hpp"

#include "llama-vocab.h"
#include "platform/errors.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

constexpr std::size_t TIDY_ABOVE = 1024; // nodes and edges
constexpr uint32_t LAST_CHARACTER = 0x10FFFF;
constexpr uint32_t SURROGATES = 0xD800; // up to 0xDFFF; in UTF-8 there are none
constexpr std::size_t READ_AT_ONCE = 32; // bytes, with the fuel of one token
// The nodes that are kept, those added before tidying, and one for each unit of fuel.
static_assert(2 * GrammarMatcher::MAX_KEPT + TIDY_ABOVE + 2 * GrammarFuel::FULL < GrammarStack::MAX_NODES);

// Adds a byte to a character; false for what is not UTF-8.
bool take_byte(llama_partial_utf8 & partial, unsigned char byte) {
    if (partial.n_remain > 0) {
        partial.value = partial.value << 6U | (byte & 0x3FU);
        // The second byte shows an overlong form, half of a surrogate pair, or what is beyond Unicode.
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
    : grammar_(std::move(grammar)), stack_(*grammar_, fuel_) {
    possible_.fill(-1);
    try {
        front_ = stack_.begin();
    } catch (const GrammarTooComplex &) {
        throw UsageError("the grammar has more ways to begin than can be followed");
    }
    if (front_.is_empty()) {
        throw UsageError("the grammar allows nothing at all");
    }
}

bool GrammarMatcher::may_begin(llama_token token) {
    const std::string & piece = grammar_->vocab()->token_to_piece(token);
    const bool by_character = partial_.n_remain == 0 && !front_.has_tokens && !piece.empty();
    return !by_character || !rules_out(static_cast<unsigned char>(piece[0]));
}

bool GrammarMatcher::allows(llama_token token) {
    fuel_.burn(1);
    const std::string & piece = grammar_->vocab()->token_to_piece(token);
    if (piece.empty() || piece.find('\0') != std::string::npos) {
        return false;
    }
    if (front_.has_tokens) {
        fuel_.burn(static_cast<uint32_t>(front_.places.size()));
        const auto matches = [&](Place place) { return takes_token(place, token); };
        if (std::any_of(front_.places.begin(), front_.places.end(), matches)) {
            return true;
        }
    }
    const GrammarStack::Try undone(stack_);
    llama_partial_utf8 partial = partial_;
    return advance_over(piece, partial) != nullptr;
}

void GrammarMatcher::accept(llama_token token) {
    Front next;
    stack_.advance(front_, next, [&](Place place) { return takes_token(place, token); });
    const bool matched = !next.is_empty();
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
    tidy();
}

bool GrammarMatcher::read(const std::string & text) {
    try {
        for (std::size_t at = 0; at < text.size(); at += READ_AT_ONCE) {
            fuel_.fill();
            llama_partial_utf8 partial = partial_;
            const Front * next = advance_over(text.substr(at, READ_AT_ONCE), partial);
            if (next == nullptr) {
                return false;
            }
            front_ = Front(*next);
            partial_ = partial;
            tidy();
        }
    } catch (const GrammarTooComplex &) {
        return false;
    }
    return true;
}

// After a step, of which the stack holds what is not needed any more.
void GrammarMatcher::tidy() {
    possible_.fill(-1);
    if (stack_.size() > 2 * n_kept_ + TIDY_ABOVE) {
        stack_.tidy(front_);
        n_kept_ = stack_.size();
    }
    if (n_kept_ > MAX_KEPT) {
        throw GrammarTooComplex();
    }
}

// Returns the set that may come after a text; nullptr if the text is not allowed. The result is valid until the next
// call.
const GrammarStack::Front * GrammarMatcher::advance_over(const std::string & piece, llama_partial_utf8 & partial) {
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
        stack_.advance(*from, to, [&](Place place) { return takes(place, partial.value, partial.value); });
        if (to.is_empty()) {
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
    fuel_.burn(grammar_->cost(place.position));
    return !grammar_->is_token(place.position) && grammar_->matches(place.position, low, high);
}

bool GrammarMatcher::takes_token(Place place, llama_token token) const noexcept {
    return partial_.n_remain == 0 && grammar_->is_token(place.position) &&
           grammar_->matches_token(place.position, token);
}

bool GrammarMatcher::any_could_be(const Front & front, llama_partial_utf8 partial) {
    const auto n_bits = 6U * static_cast<unsigned>(partial.n_remain);
    // Overlong forms are not UTF-8: a character of 3 or 4 bytes does not fit into fewer.
    const uint32_t least = partial.n_remain == 1 ? 0x80U : partial.n_remain == 2 ? 0x800U : 0x10000U;
    const uint32_t low = std::max(partial.value << n_bits, least);
    const uint32_t last = low < SURROGATES ? SURROGATES - 1 : LAST_CHARACTER;
    const uint32_t high = std::min((partial.value << n_bits) | ((1U << n_bits) - 1U), last);
    return std::any_of(front.places.begin(), front.places.end(), [&](Place place) { return takes(place, low, high); });
}

} // namespace pyllmcancel
