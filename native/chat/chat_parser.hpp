#pragma once

#include "chat/chat_form.hpp"
#include "chat/peg_machine.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pyllmcancel {

struct ChatPart {
    enum class Kind : int32_t { reasoning, content, call, arguments };

    Kind kind;
    int32_t index = 0; // of the call
    std::string text;  // of a call: the function's name
    std::string id;    // of a call; empty if the model gives none
};

// Parses one answer while it streams. However the answer is cut into pieces, the parts of each kind are the same, put
// together. From the first violation of the form on, the text is content.
class ChatParser {
  public:
    explicit ChatParser(std::shared_ptr<const ChatForm> form);
    ChatParser(const ChatParser &) = delete;
    ChatParser & operator=(const ChatParser &) = delete;
    ~ChatParser();

    const std::shared_ptr<const ChatForm> & form() const noexcept { return form_; }

    // Takes whole characters; with `final`, the answer is over.
    std::vector<ChatPart> feed(std::string_view text, bool final);

    int32_t n_calls() const noexcept { return n_calls_; }

  private:
    // The innermost node of the tree, if the text may go on with it.
    struct Tip {
        std::size_t n_nodes = 0;
        uint32_t id = 0;
        std::size_t begin = 0;
        std::size_t end = 0;
        bool is_leaf = false;
    };

    void parse(std::string_view text, bool final);
    bool show_retractions(std::size_t begin);
    bool show_decided(std::size_t begin);
    void end_in_error();
    bool show(bool now);
    bool show_tip();
    bool show_all();
    void show_message(const common_chat_msg & message);
    void show_call(std::size_t index, const common_chat_msg & message);
    void show_held();
    void end_of_grammar();
    void give_up();
    bool holds_last_call() const;
    std::size_t shown_until() const;
    bool ends_in_text(const PegTree::Node & node) const;
    Tip tip() const;
    void add(ChatPart::Kind kind, std::string text);
    void add_arguments(std::size_t index, std::string text);

    std::shared_ptr<const ChatForm> form_;
    PegMachine machine_;
    std::unique_ptr<common_chat_msg> shown_;
    std::size_t shown_end_;  // of what has been shown, in the machine's text
    Tip tip_;                // when it was
    bool holding_ = false;   // a call whose id may still come
    bool closing_ = false;   // no text follows that could give it one
    bool skipped_ = false;   // what was read last has not been shown
    bool free_ = false;      // the rest is content
    std::string mark_;       // … but not this, if nothing follows
    int64_t credit_ = 0;     // for reading the whole tree
    int32_t n_calls_ = 0;
    std::vector<ChatPart> parts_;
};

} // namespace pyllmcancel
