#include "chat/peg_machine.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

using Kind = PegProgram::Kind;

// Steps: some ten nanoseconds each. An honest answer takes a few to each byte.
constexpr int64_t FIRST_FUEL = int64_t{1} << 20U;
constexpr int64_t FUEL_PER_BYTE = 1024;
constexpr int64_t FUEL_PER_OLD_BYTE = 64;
constexpr int64_t FUEL_TO_LOOK_BACK = 4096;
constexpr std::size_t BYTES_PER_STEP = 16;
// How far before a failure the last text lies that was not undecided: the length of a mark, and some.
constexpr std::size_t MAX_UNDECIDED = 256;

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

} // namespace

PegMachine::PegMachine(std::shared_ptr<const PegProgram> program) : program_(std::move(program)), fuel_(FIRST_FUEL) {
    resume_.frames.push_back({program_->root(), 0, 0, 0, 0, 0});
}

PegMachine::State PegMachine::feed(std::string_view text) {
    text_ += text;
    if (state_ == State::failed || is_over()) {
        return state_;
    }
    begin_ = size_;
    size_ = text_.size();
    fuel_ += FUEL_PER_BYTE * static_cast<int64_t>(text.size());
    std::swap(before_, resume_);
    state_ = run();
    return state_;
}

PegMachine::State PegMachine::look_back(std::size_t length) {
    size_ = length;
    fuel_ += FUEL_TO_LOOK_BACK + FUEL_PER_OLD_BYTE * static_cast<int64_t>(length - std::min(length, begin_));
    state_ = run();
    return state_;
}

// A failure depends on text before its end, so every longer text fails, too.
PegMachine::State PegMachine::look_back_from_error() {
    std::vector<std::size_t> lengths{begin_};
    for (std::size_t at = begin_ + 1; at < text_.size(); ++at) {
        if (begins_character(text_[at])) {
            lengths.push_back(at);
        }
    }
    const auto is_right = [&](std::size_t length) { return look_back(length) != State::failed; };
    auto right = std::partition_point(lengths.begin(), lengths.end(), is_right);
    for (std::size_t i = 0; i < MAX_UNDECIDED && right != lengths.begin(); ++i) {
        --right;
        if (look_back(*right) != State::undecided) {
            return state_;
        }
    }
    state_ = State::undecided;
    return state_;
}

// From where the last feed began.
PegMachine::State PegMachine::run() {
    now_ = before_;
    tree_.nodes.resize(now_.n_nodes);
    tree_.children.resize(now_.n_children);
    retractions_.clear();
    touched_ = false;
    retracted_ = false;
    finished_ = false;
    examined_ = 0;
    while (!now_.frames.empty()) {
        if (finished_) {
            take();
        } else {
            advance();
        }
        if (finished_ && outcome_ == Outcome::more) {
            break;
        }
        --fuel_;
        if (fuel_ < 0 || now_.frames.size() > MAX_FRAMES || tree_.nodes.size() > MAX_NODES) {
            fuel_ = -1;
            return State::failed;
        }
    }
    return outcome();
}

PegMachine::State PegMachine::outcome() {
    switch (outcome_) {
        case Outcome::more: show_partial(); return is_tentative() ? State::undecided : State::growing;
        case Outcome::success: tree_.roots = now_.stack; return is_tentative() ? State::undecided : State::complete;
        default: return touched_ ? State::undecided : State::failed;
    }
}

// Returns whether the tree shows what may yet be a mark, or has lost what a shorter text showed.
bool PegMachine::is_tentative() const {
    if (!touched_ || retracted_ || is_mere_mark()) {
        return touched_;
    }
    if (held_from_ >= size_) {
        return false;
    }
    std::vector<uint32_t> waiting = tree_.roots;
    while (!waiting.empty()) {
        const PegTree::Node & node = tree_.nodes[waiting.back()];
        waiting.pop_back();
        if (node.end <= held_from_) {
            continue;
        }
        if ((*program_)[node.id].is_text || (node.n_children == 0 && node.shows && node.begin >= held_from_)) {
            return true;
        }
        const auto first = tree_.children.begin() + node.first_child;
        waiting.insert(waiting.end(), first, first + node.n_children);
    }
    return false;
}

void PegMachine::call(uint32_t node, std::size_t at) {
    const auto n_nodes = static_cast<uint32_t>(now_.stack.size());
    now_.frames.push_back({node, 0, n_nodes, n_nodes, at, at});
}

// The last frame's outcome, and where what it has read ends. With `more`, the frames stay, for the partial tree.
void PegMachine::finish(Outcome outcome, std::size_t end) {
    const Frame & frame = now_.frames.back();
    finished_ = true;
    outcome_ = outcome;
    end_ = end;
    fuel_ -= static_cast<int64_t>((end - std::min(end, frame.begin)) / BYTES_PER_STEP);
    if (outcome == Outcome::fail) {
        retract(frame);
        now_.stack.resize(frame.n_nodes);
    }
    if (outcome != Outcome::more) {
        now_.frames.pop_back();
    }
}

// `examined`: where the text ends that the outcome hangs on.
void PegMachine::finish_leaf(Outcome outcome, std::size_t end, std::size_t examined) {
    examined_ = std::max(examined_, std::min(examined, size_));
    finish(outcome, end);
}

// Notes that a frame was wrong, if a text without the last byte examined had something of it in its tree.
void PegMachine::retract(const Frame & frame) {
    const PegProgram::Node & node = (*program_)[frame.node];
    const auto shows = [&](uint32_t id) { return tree_.nodes[id].shows; };
    const bool open = node.kind == Kind::node && node.shows && examined_ > frame.begin + 1;
    const bool whole = std::any_of(now_.stack.begin() + frame.n_nodes, now_.stack.end(), shows);
    if ((!open && !whole) || is_hidden()) {
        return;
    }
    if (touched_) {
        retracted_ = true;
    } else if (retractions_.empty() || retractions_.back() < examined_) {
        retractions_.push_back(examined_);
    }
}

bool PegMachine::is_hidden() const {
    return std::any_of(now_.frames.begin(), now_.frames.end(), [&](const Frame & frame) {
        const Kind kind = (*program_)[frame.node].kind;
        return kind == Kind::atomic || kind == Kind::ahead || kind == Kind::not_ahead;
    });
}

void PegMachine::advance() {
    Frame & frame = now_.frames.back();
    const PegProgram::Node & node = (*program_)[frame.node];
    switch (node.kind) {
        case Kind::nothing: return finish(Outcome::success, frame.begin);
        case Kind::start: return finish(frame.begin == 0 ? Outcome::success : Outcome::fail, frame.begin);
        case Kind::end:
            if (!at_end(frame.begin)) {
                return finish_leaf(Outcome::fail, frame.begin, frame.begin + 1);
            }
            touch_end();
            return finish(Outcome::success, frame.begin);
        case Kind::literal: return read_literal(frame, node);
        case Kind::space: return read_space(frame);
        case Kind::any: return read_any(frame);
        case Kind::chars: now_.text_at = frame.begin; return read_chars(frame, node);
        case Kind::string: now_.text_at = frame.begin; return read_string(frame, node);
        case Kind::until: now_.text_at = frame.begin; return read_until(frame, node);
        case Kind::sequence:
            return frame.step == node.children.size() ? finish(Outcome::success, frame.at)
                                                      : call(node.children[frame.step], frame.at);
        case Kind::choice:
            return frame.step == node.children.size() ? finish(Outcome::fail, frame.begin)
                                                      : call(node.children[frame.step], frame.begin);
        case Kind::repetition:
            if (node.most >= 0 && frame.step >= static_cast<uint32_t>(node.most)) {
                return end_repetition(frame, node);
            }
            if (at_end(frame.at)) {
                touch_end();
                return end_repetition(frame, node);
            }
            frame.n_round = static_cast<uint32_t>(now_.stack.size());
            return call(node.child, frame.at);
        case Kind::ahead:
        case Kind::not_ahead:
        case Kind::node:
        case Kind::atomic:
        case Kind::child: return call(node.child, frame.begin);
    }
}

// The outcome of a child, by its parent.
void PegMachine::take() {
    finished_ = false;
    Frame & frame = now_.frames.back();
    const PegProgram::Node & node = (*program_)[frame.node];
    const bool right = outcome_ == Outcome::success;
    switch (node.kind) {
        case Kind::sequence:
            if (!right) {
                return finish(Outcome::fail, frame.begin);
            }
            frame.at = end_;
            ++frame.step;
            return;
        case Kind::choice:
            if (right) {
                return finish(Outcome::success, end_);
            }
            ++frame.step;
            return;
        case Kind::repetition:
            if (right && end_ != frame.at) {
                frame.at = end_;
                ++frame.step;
                return;
            }
            now_.stack.resize(frame.n_round);
            return end_repetition(frame, node);
        case Kind::ahead: now_.stack.resize(frame.n_nodes); return finish(outcome_, frame.begin);
        case Kind::not_ahead:
            now_.stack.resize(frame.n_nodes);
            return finish(right ? Outcome::fail : Outcome::success, frame.begin);
        case Kind::node:
            if (right) {
                const std::vector<uint32_t> children(now_.stack.begin() + frame.n_nodes, now_.stack.end());
                now_.stack.resize(frame.n_nodes);
                now_.stack.push_back(add_node(frame, end_, children, false));
            }
            return finish(outcome_, end_);
        default: return finish(outcome_, end_);
    }
}

void PegMachine::end_repetition(const Frame & frame, const PegProgram::Node & node) {
    if (static_cast<int64_t>(frame.step) >= node.least) {
        return finish(Outcome::success, frame.at);
    }
    if (!at_end(frame.at)) {
        return finish(Outcome::fail, frame.at);
    }
    touch_end();
    finish(Outcome::more, frame.at);
}

void PegMachine::touch_end(std::size_t held_from) {
    if (!touched_) {
        touched_ = true;
        held_from_ = held_from;
        resume_ = now_;
        resume_.n_nodes = tree_.nodes.size();
        resume_.n_children = tree_.children.size();
    }
}

// Returns whether what is open is fixed text only, as yet: other marks may begin as it does.
bool PegMachine::is_mere_mark() const noexcept {
    return std::any_of(now_.frames.begin(), now_.frames.end(), [&](const Frame & frame) {
        const PegProgram::Node & node = (*program_)[frame.node];
        return node.kind == Kind::node && node.is_text && now_.text_at < frame.begin;
    });
}

const std::string * PegMachine::held_in() const noexcept {
    for (auto frame = resume_.frames.rbegin(); frame != resume_.frames.rend(); ++frame) {
        const PegProgram::Node & node = (*program_)[frame->node];
        if (!node.tag.empty()) {
            return &node.tag;
        }
    }
    return nullptr;
}

uint32_t PegMachine::add_node(const Frame & frame, std::size_t end, const std::vector<uint32_t> & children,
                              bool partial) {
    const auto shows = [&](uint32_t child) { return tree_.nodes[child].shows; };
    tree_.nodes.push_back({frame.node, frame.begin, end, static_cast<uint32_t>(tree_.children.size()),
                           static_cast<uint32_t>(children.size()), partial,
                           (*program_)[frame.node].shows || std::any_of(children.begin(), children.end(), shows)});
    tree_.children.insert(tree_.children.end(), children.begin(), children.end());
    return static_cast<uint32_t>(tree_.nodes.size() - 1);
}

// The tree with all that is open, from the innermost frame outwards.
void PegMachine::show_partial() {
    std::vector<uint32_t> shown;
    std::size_t end = end_;
    std::size_t top = now_.stack.size();
    for (auto frame = now_.frames.rbegin(); frame != now_.frames.rend(); ++frame) {
        const auto begin = now_.stack.begin();
        shown.insert(shown.begin(), begin + frame->n_nodes, begin + static_cast<std::ptrdiff_t>(top));
        top = frame->n_nodes;
        switch ((*program_)[frame->node].kind) {
            case Kind::ahead:
            case Kind::not_ahead:
                shown.clear();
                end = frame->begin;
                break;
            case Kind::atomic: shown.clear(); break;
            case Kind::node: shown = {add_node(*frame, end, shown, true)}; break;
            default: break;
        }
    }
    tree_.roots = std::move(shown);
}

} // namespace pyllmcancel
