#include "chat/peg_program.hpp"

#include "chat-peg-parser.h"
#include "peg-parser.h"
#include "trie.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <stdexcept>
#include <variant>

namespace pyllmcancel {
namespace {

using Node = PegProgram::Node;
using Kind = PegProgram::Kind;

// Reading the grammar of a hundred tools takes some 15 ms, and ten times the memory of its text.
constexpr std::size_t MAX_REMEMBERED = 8;
constexpr std::size_t LONGEST_REMEMBERED = std::size_t{1} << 19U; // bytes

struct Remembered {
    std::string saved;
    bool rules = false;
    std::shared_ptr<const PegProgram> program;
};

uint32_t narrow(std::size_t id) { return static_cast<uint32_t>(id); }

std::vector<uint32_t> narrow(const std::vector<common_peg_parser_id> & ids) { return {ids.begin(), ids.end()}; }

bool has_child(Kind kind) {
    switch (kind) {
        case Kind::repetition:
        case Kind::ahead:
        case Kind::not_ahead:
        case Kind::node:
        case Kind::atomic:
        case Kind::child: return true;
        default: return false;
    }
}

// One function for each kind of parser that llama.cpp has.
struct Layout {
    const common_peg_arena & arena;
    Node & node;
    bool rules;

    void operator()(const common_peg_epsilon_parser &) const { node.kind = Kind::nothing; }
    void operator()(const common_peg_start_parser &) const { node.kind = Kind::start; }
    void operator()(const common_peg_end_parser &) const { node.kind = Kind::end; }
    void operator()(const common_peg_any_parser &) const { node.kind = Kind::any; }
    void operator()(const common_peg_space_parser &) const { node.kind = Kind::space; }

    void operator()(const common_peg_literal_parser & parser) const {
        node.kind = Kind::literal;
        node.text = parser.literal;
    }

    void operator()(const common_peg_sequence_parser & parser) const {
        node.kind = Kind::sequence;
        node.children = narrow(parser.children);
    }

    void operator()(const common_peg_choice_parser & parser) const {
        node.kind = Kind::choice;
        node.children = narrow(parser.children);
    }

    void operator()(const common_peg_repetition_parser & parser) const {
        parent(Kind::repetition, parser.child);
        node.least = parser.min_count;
        node.most = parser.max_count;
    }

    void operator()(const common_peg_chars_parser & parser) const {
        node.kind = Kind::chars;
        node.negated = parser.negated;
        node.least = parser.min_count;
        node.most = parser.max_count;
        for (const auto & range : parser.ranges) {
            node.ranges.emplace_back(range.start, range.end);
        }
    }

    void operator()(const common_peg_string_parser & parser) const {
        node.kind = Kind::string;
        node.delimiter = parser.delimiter;
    }

    void operator()(const common_peg_until_parser & parser) const {
        node.kind = Kind::until;
        node.marks = std::make_shared<const common_trie>(parser.delimiters);
        for (const std::string & mark : parser.delimiters) {
            if (!mark.empty()) {
                node.mark_texts.push_back(mark);
                node.first[static_cast<unsigned char>(mark[0])] = true;
            }
        }
    }

    void operator()(const common_peg_tag_parser & parser) const {
        parent(Kind::node, parser.child);
        node.tag = parser.tag;
        node.is_text =
            parser.tag == common_chat_peg_builder::CONTENT || parser.tag == common_chat_peg_builder::REASONING;
        node.shows = parser.tag != common_chat_peg_builder::REASONING_BLOCK &&
                     parser.tag != common_chat_peg_builder::TOOL && parser.tag != common_chat_peg_builder::TOOL_OPEN &&
                     parser.tag != common_chat_peg_builder::TOOL_ARG &&
                     parser.tag != common_chat_peg_builder::TOOL_ARG_OPEN;
    }

    void operator()(const common_peg_rule_parser & parser) const {
        parent(rules ? Kind::node : Kind::child, parser.child);
        node.rule = parser.name;
    }

    void operator()(const common_peg_and_parser & parser) const { parent(Kind::ahead, parser.child); }
    void operator()(const common_peg_not_parser & parser) const { parent(Kind::not_ahead, parser.child); }
    void operator()(const common_peg_atomic_parser & parser) const { parent(Kind::atomic, parser.child); }
    void operator()(const common_peg_schema_parser & parser) const { parent(Kind::child, parser.child); }
    void operator()(const common_peg_gbnf_parser & parser) const { parent(Kind::child, parser.child); }
    void operator()(const common_peg_ac_parser & parser) const { parent(Kind::child, parser.child); }

    void operator()(const common_peg_ref_parser & parser) const { parent(Kind::child, arena.get_rule(parser.name)); }

    void parent(Kind kind, std::size_t child) const {
        node.kind = kind;
        node.child = narrow(child);
    }
};

} // namespace

std::shared_ptr<const PegProgram> PegProgram::recall(const std::string & saved, bool rules) {
    static std::mutex mutex;
    static std::list<Remembered> remembered; // the last one used is first
    {
        const std::lock_guard<std::mutex> guard(mutex);
        for (auto one = remembered.begin(); one != remembered.end(); ++one) {
            if (one->rules == rules && one->saved == saved) {
                remembered.splice(remembered.begin(), remembered, one);
                return remembered.front().program;
            }
        }
    }
    auto program = std::make_shared<const PegProgram>(saved, rules);
    if (saved.size() <= LONGEST_REMEMBERED) {
        const std::lock_guard<std::mutex> guard(mutex);
        remembered.push_front({saved, rules, program});
        remembered.resize(std::min(remembered.size(), MAX_REMEMBERED));
    }
    return program;
}

PegProgram::PegProgram(const std::string & saved, bool rules) {
    common_peg_arena arena;
    if (saved.empty()) {
        arena = build_chat_peg_parser(
            [](common_chat_peg_builder & builder) { return builder.content(builder.rest()) + builder.end(); });
    } else {
        arena.load(saved);
    }
    load(arena, rules);
    ids_come_late_ = finds_late_id();
}

void PegProgram::load(const common_peg_arena & arena, bool rules) {
    nodes_.resize(arena.size());
    for (std::size_t id = 0; id < arena.size(); ++id) {
        std::visit(Layout{arena, nodes_[id], rules}, arena.get(id));
    }
    const auto check = [&](std::size_t id) {
        if (id >= nodes_.size()) {
            throw std::runtime_error("a rule that is not there");
        }
    };
    check(arena.root());
    root_ = narrow(arena.root());
    for (const Node & node : nodes_) {
        check(node.child);
        for (const uint32_t child : node.children) {
            check(child);
        }
    }
}

// Walks over the grammar in the order of its texts, each rule once.
bool PegProgram::finds_late_id() const {
    std::vector<bool> seen(nodes_.size());
    std::vector<uint32_t> waiting{root_};
    bool named = false;
    while (!waiting.empty()) {
        const uint32_t id = waiting.back();
        waiting.pop_back();
        const Node & node = nodes_[id];
        if (seen[id]) {
            continue;
        }
        seen[id] = true;
        if (node.tag == common_chat_peg_builder::TOOL) {
            named = false;
        } else if (node.tag == common_chat_peg_builder::TOOL_NAME) {
            named = true;
        } else if (node.tag == common_chat_peg_builder::TOOL_ID && named) {
            return true;
        }
        if (has_child(node.kind)) {
            waiting.push_back(node.child);
        }
        waiting.insert(waiting.end(), node.children.rbegin(), node.children.rend());
    }
    return false;
}

} // namespace pyllmcancel
