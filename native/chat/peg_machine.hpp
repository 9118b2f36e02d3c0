#pragma once

#include "chat/peg_program.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pyllmcancel {

// The parts that a PegMachine has recognised: the parts that the grammar tags, in the order of the text.
struct PegTree {
    struct Node {
        uint32_t id; // of the program's node
        std::size_t begin;
        std::size_t end;
        uint32_t first_child; // in `children`
        uint32_t n_children;
        bool partial; // the text may go on with it
        bool shows;   // it, or a part of it, changes what an answer says
    };

    std::vector<Node> nodes; // children before their parents
    std::vector<uint32_t> children;
    std::vector<uint32_t> roots;
};

// Follows a PegProgram over a text that grows. At every moment the tree is what llama.cpp's parser makes of the text so far,
// but of that text only what hung on its end is read again. No recursion; steps, depth and memory are limited.
class PegMachine {
  public:
    // `undecided`: the tree may be wrong, because what followed from the text's end was; `failed`: so is every longer text.
    enum class State : uint8_t { growing, complete, undecided, failed };

    static constexpr std::size_t MAX_FRAMES = 2048; // some eight for each bracket of JSON
    static constexpr std::size_t MAX_NODES = std::size_t{1} << 18U;

    explicit PegMachine(std::shared_ptr<const PegProgram> program);

    // Continues with more text, in whole characters.
    State feed(std::string_view text);

    State state() const noexcept { return state_; }
    const std::string & text() const noexcept { return text_; }
    const PegTree & tree() const noexcept { return tree_; }

    // Returns whether no more text can change the tree: the grammar ends at `end`, maybe before a mark.
    bool is_over() const noexcept { return state_ == State::complete && !touched_; }
    std::size_t end() const noexcept { return end_; }
    bool ended_in_mark() const noexcept { return end_ == mark_at_; }
    std::size_t mark_size() const noexcept { return mark_end_ - mark_at_; }

    // Lengths of the text at which, in the last feed, a part of the tree turned out to be wrong that a shorter text had.
    const std::vector<std::size_t> & retractions() const noexcept { return retractions_; }

    // After a feed: the state of the text up to a length, which is one of its characters' ends and not before that feed.
    State look_back(std::size_t length);

    // After a feed that failed, or is not decided: the state of the longest text that is right; `undecided` if the feed
    // added nothing to it.
    State look_back_from_error();

    // Where text is held back that may be the beginning of a mark; the length of the text if none is.
    std::size_t held_from() const noexcept { return held_from_; }

    // The tag of what is open there; nullptr if nothing is.
    const std::string * held_in() const noexcept;

  private:
    enum class Outcome : uint8_t { fail, success, more };

    struct Frame {
        uint32_t node;
        uint32_t step;    // the child of a sequence or choice, the round of a repetition
        uint32_t n_nodes; // on the stack when it began
        uint32_t n_round; // … when this round did
        std::size_t begin;
        std::size_t at;
    };

    struct Place {
        std::vector<Frame> frames;
        std::vector<uint32_t> stack; // nodes of the tree whose parent is not complete
        std::size_t n_nodes = 0;     // of the tree
        std::size_t n_children = 0;
        std::size_t text_at = 0; // where the last part began that is no fixed text
    };

    State run();
    State outcome();
    bool is_tentative() const;
    bool is_mere_mark() const noexcept;
    void advance();
    void take();
    void call(uint32_t node, std::size_t at);
    void finish(Outcome outcome, std::size_t end);
    void finish_leaf(Outcome outcome, std::size_t end, std::size_t examined);
    void end_repetition(const Frame & frame, const PegProgram::Node & node);
    void read_literal(const Frame & frame, const PegProgram::Node & node);
    void read_space(Frame & frame);
    void read_any(const Frame & frame);
    void read_chars(Frame & frame, const PegProgram::Node & node);
    void read_string(Frame & frame, const PegProgram::Node & node);
    std::size_t escape_length(std::size_t at, char delimiter) const;
    std::size_t end_of_wrong_escape(std::size_t at) const;
    void read_until(Frame & frame, const PegProgram::Node & node);
    std::string_view read() const noexcept { return std::string_view(text_).substr(0, size_); }
    bool at_end(std::size_t place) const noexcept { return place >= size_; }
    void touch_end(std::size_t held_from);
    void touch_end() { touch_end(size_); }
    void retract(const Frame & frame);
    bool is_hidden() const;
    uint32_t add_node(const Frame & frame, std::size_t end, const std::vector<uint32_t> & children, bool partial);
    void show_partial();

    std::shared_ptr<const PegProgram> program_;
    std::string text_;
    std::size_t size_ = 0;  // of what is read of it
    std::size_t begin_ = 0; // … when the last feed began
    State state_ = State::growing;
    Place now_;
    Place before_;         // where the last feed began
    Place resume_;         // before the first decision that hung on the text's end
    bool touched_ = true;  // whether there was one
    bool retracted_ = false; // whether one that hung on it was wrong
    std::vector<std::size_t> retractions_;
    std::size_t examined_ = 0; // bytes that what has been decided hangs on
    std::size_t held_from_ = 0;
    bool finished_ = false; // a frame has, and its parent has not taken its outcome
    Outcome outcome_ = Outcome::more;
    std::size_t end_ = 0;
    std::size_t mark_at_ = 0; // the last mark that ended a text
    std::size_t mark_end_ = 0;
    int64_t fuel_;
    PegTree tree_;
};

} // namespace pyllmcancel
