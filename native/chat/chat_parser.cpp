#include "chat/chat_parser.hpp"

#include "chat-peg-parser.h"
#include "chat.h"
#include "json.h"

#include <algorithm>
#include <exception>

namespace pyllmcancel {
namespace {

using Builder = common_chat_peg_builder;

// Reading a tree of n nodes and m bytes costs NODE_COST * n + m / BYTES_PER_UNIT, and each byte that comes pays CREDIT: the
// tree of a long answer is not read for every byte. Text goes on without it.
constexpr int64_t NODE_COST = 8;
constexpr std::size_t BYTES_PER_UNIT = 32;
constexpr int64_t CREDIT = 256;
constexpr std::size_t MAX_RETRACTIONS = 64; // looked at in one piece

bool begins_with(const std::string & text, const std::string & start) {
    return text.compare(0, start.size(), start) == 0;
}

// llama.cpp's reader of arguments drops it.
std::string_view without_trailing_space(std::string_view text) {
    const std::size_t last = text.find_last_not_of(" \t\n\v\f\r");
    return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

std::string escaped(std::string_view text) {
    const std::string quoted = common_json(std::string(text)).dump();
    return quoted.substr(1, quoted.size() - 2);
}

bool is_decided(PegMachine::State state) {
    return state == PegMachine::State::growing || state == PegMachine::State::complete;
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// Returns whether a message is what has been shown, and more.
bool extends(const common_chat_msg & message, const common_chat_msg & shown) {
    bool same = begins_with(message.reasoning_content, shown.reasoning_content) &&
                begins_with(message.content, shown.content) && message.tool_calls.size() >= shown.tool_calls.size();
    for (std::size_t i = 0; same && i < shown.tool_calls.size(); ++i) {
        same = message.tool_calls[i].name == shown.tool_calls[i].name &&
               begins_with(message.tool_calls[i].arguments, shown.tool_calls[i].arguments);
    }
    return same;
}

} // namespace

ChatParser::ChatParser(std::shared_ptr<const ChatForm> form)
    : form_(std::move(form)), machine_(form_->program()), shown_(std::make_unique<common_chat_msg>()),
      shown_end_(form_->prompt().size()) {
    const PegMachine::State state = machine_.feed(form_->prompt());
    if (form_->is_continuation() && is_decided(state)) {
        show(true);
        parts_.clear(); // the client has it
    }
}

ChatParser::~ChatParser() = default;

std::vector<ChatPart> ChatParser::feed(std::string_view text, bool final) {
    parts_.clear();
    if (free_ && !text.empty()) {
        add(ChatPart::Kind::content, mark_ + std::string(text));
        mark_.clear();
    } else if (!free_) {
        const std::size_t n_read = machine_.text().size();
        try {
            parse(text, final);
        } catch (const std::exception &) {
            if (machine_.text().size() == n_read) {
                throw; // no memory for the text
            }
            give_up();
        }
    }
    return std::move(parts_);
}

void ChatParser::parse(std::string_view text, bool final) {
    const std::size_t begin = machine_.text().size();
    machine_.feed(text);
    credit_ += CREDIT * static_cast<int64_t>(text.size() + 1);
    if (!show_retractions(begin)) {
        give_up();
        return;
    }
    switch (machine_.state()) {
        case PegMachine::State::failed: end_in_error(); return;
        case PegMachine::State::undecided:
            if (final || !show_decided(begin)) {
                end_in_error();
            }
            return;
        case PegMachine::State::complete:
        case PegMachine::State::growing:
            closing_ = final;
            if (!show(final || machine_.is_over())) {
                give_up();
                return;
            }
    }
    if (machine_.is_over()) {
        end_of_grammar();
    } else if (final) {
        show_held();
    }
}

// In a long piece, what a shorter one would have shown before it turned out to be wrong. False if it did: it cannot be
// taken back.
bool ChatParser::show_retractions(std::size_t begin) {
    std::vector<std::size_t> lengths = machine_.retractions();
    if (lengths.empty()) {
        return true;
    }
    const std::string & text = machine_.text();
    const auto show_at = [&](std::size_t length) {
        if (length < begin || length >= text.size() || (length == begin && !skipped_)) {
            return true;
        }
        const PegMachine::State state = machine_.look_back(length);
        return !is_decided(state) || show(true);
    };
    lengths.resize(std::min(lengths.size(), MAX_RETRACTIONS));
    for (const std::size_t length : lengths) {
        std::size_t before = length - 1;
        std::size_t after = length;
        while (before > begin && continues_character(text[before])) {
            --before;
        }
        while (after < text.size() && continues_character(text[after])) {
            ++after;
        }
        if (!show_at(before) || !show_at(after)) {
            closing_ = true;
            if (holding_) {
                machine_.look_back(before);
                show(true);
            }
            return false;
        }
    }
    machine_.look_back(text.size());
    return true;
}

// Shows the decided part of a long piece that is not decided. False if it is not what was shown, and more.
bool ChatParser::show_decided(std::size_t begin) {
    const std::size_t size = machine_.text().size();
    if (size - begin > 1 || skipped_) {
        if (is_decided(machine_.look_back_from_error()) && !show(true)) {
            return false;
        }
        machine_.look_back(size);
    }
    return true;
}

void ChatParser::end_in_error() {
    closing_ = true;
    const PegMachine::State state = machine_.look_back_from_error();
    if (is_decided(state)) {
        show(true);
    }
    give_up();
}

// All that can be seen of the tree; without `now`, as far as credit goes. False if it is not what was shown, and more.
bool ChatParser::show(bool now) {
    skipped_ = false;
    if (!(closing_ && holding_) && show_tip()) {
        return true;
    }
    const auto cost = NODE_COST * static_cast<int64_t>(machine_.tree().nodes.size()) +
                      static_cast<int64_t>(machine_.text().size() / BYTES_PER_UNIT);
    if (!now && cost > credit_) {
        skipped_ = true;
        return true;
    }
    credit_ -= now ? 0 : cost;
    return show_all();
}

ChatParser::Tip ChatParser::tip() const {
    const PegTree & tree = machine_.tree();
    Tip tip;
    tip.n_nodes = tree.nodes.size();
    if (tree.roots.empty()) {
        return tip;
    }
    const PegTree::Node * node = &tree.nodes[tree.roots.back()];
    while (node->partial && node->n_children > 0) {
        node = &tree.nodes[tree.children[node->first_child + node->n_children - 1]];
    }
    tip.id = node->id;
    tip.begin = node->begin;
    tip.end = node->end;
    tip.is_leaf = node->partial;
    return tip;
}

// Where the tree differs only in how far its last part goes, what was added to that part is all that is new.
bool ChatParser::show_tip() {
    const Tip now = tip();
    if (!now.is_leaf || !tip_.is_leaf || holding_ || now.n_nodes != tip_.n_nodes || now.id != tip_.id ||
        now.begin != tip_.begin || now.end < tip_.end) {
        return false;
    }
    const std::string_view text = machine_.text();
    const std::string & tag = (*form_->program())[now.id].tag;
    const auto added = text.substr(tip_.end, now.end - tip_.end);
    if (tag == Builder::CONTENT) {
        shown_->content += added;
        add(ChatPart::Kind::content, std::string(added));
    } else if (tag == Builder::REASONING && !shown_->reasoning_content.empty()) {
        shown_->reasoning_content += added;
        add(ChatPart::Kind::reasoning, std::string(added));
    } else if (!form_->has_plain_arguments() || shown_->tool_calls.empty() || tip_.end == tip_.begin) {
        return false;
    } else if (tag == Builder::TOOL_ARGS && text[now.begin] == '{') {
        std::string & shown = shown_->tool_calls.back().arguments;
        const auto arguments = without_trailing_space(text.substr(now.begin, now.end - now.begin));
        if (arguments.size() < shown.size()) {
            return false;
        }
        add_arguments(shown_->tool_calls.size() - 1, std::string(arguments.substr(shown.size())));
        shown = arguments;
    } else if (tag == Builder::TOOL_ARG_STRING_VALUE) {
        const std::string more = escaped(added);
        shown_->tool_calls.back().arguments += more;
        add_arguments(shown_->tool_calls.size() - 1, more);
    } else {
        return false;
    }
    tip_ = now;
    shown_end_ = now.end;
    return true;
}

bool ChatParser::show_all() {
    const common_chat_msg message = form_->read(machine_.tree(), machine_.text());
    if (!extends(message, *shown_)) {
        return false;
    }
    holding_ = holds_last_call();
    show_message(message);
    tip_ = tip();
    shown_end_ = shown_until();
    return true;
}

// Returns whether the last call is not complete, and may still get an id, which must come with its name.
bool ChatParser::holds_last_call() const {
    if (closing_ || !form_->program()->ids_come_late()) {
        return false;
    }
    const PegTree & tree = machine_.tree();
    const auto tag = [&](const PegTree::Node & node) -> const std::string & {
        return (*form_->program())[node.id].tag;
    };
    const auto open = std::find_if(tree.nodes.begin(), tree.nodes.end(), [&](const PegTree::Node & node) {
        return node.partial && tag(node) == Builder::TOOL;
    });
    return open != tree.nodes.end() && std::any_of(tree.nodes.begin(), open, [&](const PegTree::Node & node) {
               return tag(node) == Builder::TOOL_NAME && node.begin >= open->begin;
           });
}

// Where the text ends that has been shown, or that is marks around it.
std::size_t ChatParser::shown_until() const {
    std::size_t end = form_->prompt().size();
    std::vector<uint32_t> waiting = machine_.tree().roots;
    while (!waiting.empty()) {
        const PegTree::Node & node = machine_.tree().nodes[waiting.back()];
        waiting.pop_back();
        if (node.partial ? ends_in_text(node) : node.shows) {
            end = std::max(end, node.end);
        }
        const auto first = machine_.tree().children.begin() + node.first_child;
        waiting.insert(waiting.end(), first, first + node.n_children);
    }
    return end;
}

bool ChatParser::ends_in_text(const PegTree::Node & node) const {
    const PegProgram::Node & rule = (*form_->program())[node.id];
    return rule.is_text || rule.tag == Builder::TOOL_ARG_VALUE || rule.tag == Builder::TOOL_ARG_STRING_VALUE ||
           (rule.tag == Builder::TOOL_ARGS && node.n_children == 0 && form_->has_plain_arguments());
}

void ChatParser::show_message(const common_chat_msg & message) {
    add(ChatPart::Kind::reasoning, message.reasoning_content.substr(shown_->reasoning_content.size()));
    add(ChatPart::Kind::content, message.content.substr(shown_->content.size()));
    shown_->reasoning_content = message.reasoning_content;
    shown_->content = message.content;
    const std::size_t n_calls = message.tool_calls.size();
    const bool holds = holding_ && n_calls > shown_->tool_calls.size();
    for (std::size_t index = 0; index < n_calls - (holds ? 1 : 0); ++index) {
        show_call(index, message);
    }
}

void ChatParser::show_call(std::size_t index, const common_chat_msg & message) {
    const common_chat_tool_call & call = message.tool_calls[index];
    if (index == shown_->tool_calls.size()) {
        shown_->tool_calls.push_back({call.name, "", call.id});
        parts_.push_back({ChatPart::Kind::call, static_cast<int32_t>(index), call.name, call.id});
        n_calls_ = static_cast<int32_t>(index) + 1;
    }
    std::string & shown = shown_->tool_calls[index].arguments;
    add_arguments(index, call.arguments.substr(shown.size()));
    shown = call.arguments;
}

// At the end of the answer, the beginning of a mark is text after all.
void ChatParser::show_held() {
    const std::size_t from = machine_.held_from();
    const std::string * tag = machine_.held_in();
    if (from >= machine_.text().size() || from < shown_end_ || tag == nullptr) {
        return;
    }
    if (*tag == Builder::CONTENT || *tag == Builder::REASONING) {
        add(*tag == Builder::CONTENT ? ChatPart::Kind::content : ChatPart::Kind::reasoning,
            machine_.text().substr(from));
        shown_end_ = machine_.text().size();
    }
}

// The rest is content, with the mark that has ended the grammar; the mark alone is not.
void ChatParser::end_of_grammar() {
    free_ = true;
    std::string rest = machine_.text().substr(machine_.end());
    if (machine_.ended_in_mark() && rest.size() <= machine_.mark_size()) {
        mark_ = std::move(rest);
    } else {
        add(ChatPart::Kind::content, std::move(rest));
    }
}

void ChatParser::give_up() {
    free_ = true;
    add(ChatPart::Kind::content, machine_.text().substr(std::min(shown_end_, machine_.text().size())));
}

void ChatParser::add(ChatPart::Kind kind, std::string text) {
    if (!text.empty()) {
        parts_.push_back({kind, 0, std::move(text), {}});
    }
}

void ChatParser::add_arguments(std::size_t index, std::string text) {
    if (!text.empty()) {
        parts_.push_back({ChatPart::Kind::arguments, static_cast<int32_t>(index), std::move(text), {}});
    }
}

} // namespace pyllmcancel
