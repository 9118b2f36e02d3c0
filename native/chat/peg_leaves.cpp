#include "chat/peg_machine.hpp"
#include "common/unicode.h"
#include "trie.h"

#include <algorithm>
#include <cctype>

// The parts of a PegProgram that read characters.

namespace pyllmcancel {
namespace {

constexpr std::size_t NO_ESCAPE = 0;
constexpr std::size_t OPEN_ESCAPE = std::size_t(-1);

bool is_hex(char byte) { return std::isxdigit(static_cast<unsigned char>(byte)) != 0; }

bool is_space(char byte) { return std::isspace(static_cast<unsigned char>(byte)) != 0; }

// The length of the shortest mark that a text begins with.
std::size_t mark_length(const PegProgram::Node & node, std::string_view text) {
    std::size_t length = text.size();
    for (const std::string & mark : node.mark_texts) {
        length = text.substr(0, mark.size()) == mark ? std::min(length, mark.size()) : length;
    }
    return length;
}

bool contains(const PegProgram::Node & node, uint32_t character) {
    const auto in_range = [&](const auto & range) { return range.first <= character && character <= range.second; };
    return std::any_of(node.ranges.begin(), node.ranges.end(), in_range) != node.negated;
}

} // namespace

void PegMachine::read_literal(const Frame & frame, const PegProgram::Node & node) {
    const std::string_view text = read().substr(frame.begin, node.text.size());
    const auto wrong = std::mismatch(text.begin(), text.end(), node.text.begin()).first;
    const std::size_t end = frame.begin + static_cast<std::size_t>(wrong - text.begin());
    if (wrong != text.end()) {
        return finish_leaf(Outcome::fail, frame.begin, end + 1);
    }
    if (text.size() < node.text.size()) {
        touch_end();
        return finish(Outcome::more, end);
    }
    finish_leaf(Outcome::success, end, end);
}

void PegMachine::read_space(Frame & frame) {
    while (!at_end(frame.at) && is_space(text_[frame.at])) {
        ++frame.at;
    }
    if (at_end(frame.at)) {
        touch_end();
    }
    finish_leaf(Outcome::success, frame.at, frame.at + 1);
}

void PegMachine::read_any(const Frame & frame) {
    const utf8_parse_result character = common_parse_utf8_codepoint(read(), frame.begin);
    if (character.status == utf8_parse_result::INCOMPLETE) {
        touch_end();
        return finish(Outcome::more, frame.begin);
    }
    const std::size_t end = frame.begin + character.bytes_consumed;
    finish_leaf(character.status == utf8_parse_result::SUCCESS ? Outcome::success : Outcome::fail, end, end);
}

// `step` counts the characters.
void PegMachine::read_chars(Frame & frame, const PegProgram::Node & node) {
    const auto enough = [&] { return static_cast<int64_t>(frame.step) >= node.least; };
    while (node.most < 0 || static_cast<int64_t>(frame.step) < node.most) {
        const utf8_parse_result character = common_parse_utf8_codepoint(read(), frame.at);
        if (character.status == utf8_parse_result::INCOMPLETE) {
            touch_end();
            return finish(enough() ? Outcome::success : Outcome::more, frame.at);
        }
        if (character.status == utf8_parse_result::INVALID || !contains(node, character.codepoint)) {
            return finish_leaf(enough() ? Outcome::success : Outcome::fail, frame.at, frame.at + 1);
        }
        frame.at += character.bytes_consumed;
        ++frame.step;
    }
    finish_leaf(enough() ? Outcome::success : Outcome::fail, frame.at, frame.at);
}

// The length of the escape at `at`.
std::size_t PegMachine::escape_length(std::size_t at, char delimiter) const {
    if (at_end(at + 1)) {
        return OPEN_ESCAPE;
    }
    const char sign = text_[at + 1];
    if (sign == delimiter || std::string_view("\\/bfnrt").find(sign) != std::string_view::npos) {
        return 2;
    }
    if (sign != 'u') {
        return NO_ESCAPE;
    }
    for (std::size_t digit = at + 2; digit < at + 6; ++digit) {
        if (at_end(digit)) {
            return OPEN_ESCAPE;
        }
        if (!is_hex(text_[digit])) {
            return NO_ESCAPE;
        }
    }
    return 6;
}

// Up to the byte that is wrong.
std::size_t PegMachine::end_of_wrong_escape(std::size_t at) const {
    std::size_t end = at + 2;
    while (text_[at + 1] == 'u' && is_hex(text_[end])) {
        ++end;
    }
    return text_[at + 1] == 'u' ? end + 1 : end;
}

void PegMachine::read_string(Frame & frame, const PegProgram::Node & node) {
    while (!at_end(frame.at)) {
        if (text_[frame.at] == node.delimiter) {
            return finish_leaf(Outcome::success, frame.at, frame.at + 1);
        }
        if (text_[frame.at] != '\\') {
            ++frame.at;
            continue;
        }
        const std::size_t length = escape_length(frame.at, node.delimiter);
        if (length == OPEN_ESCAPE) {
            break;
        }
        if (length == NO_ESCAPE) {
            return finish_leaf(Outcome::fail, frame.begin, end_of_wrong_escape(frame.at));
        }
        frame.at += length;
    }
    touch_end();
    finish(Outcome::more, frame.at);
}

void PegMachine::read_until(Frame & frame, const PegProgram::Node & node) {
    for (; !at_end(frame.at); ++frame.at) {
        if (!node.first[static_cast<unsigned char>(text_[frame.at])]) {
            continue;
        }
        const common_trie::match_result match = node.marks->check_at(read(), frame.at);
        if (match == common_trie::PARTIAL_MATCH) {
            touch_end(frame.at);
            return finish(Outcome::success, frame.at);
        }
        if (match == common_trie::COMPLETE_MATCH) {
            mark_at_ = frame.at;
            mark_end_ = frame.at + mark_length(node, read().substr(frame.at));
            return finish_leaf(Outcome::success, frame.at, mark_end_);
        }
    }
    touch_end();
    finish(Outcome::more, frame.at);
}

} // namespace pyllmcancel
