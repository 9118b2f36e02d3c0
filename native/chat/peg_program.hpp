#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

class common_peg_arena;
struct common_trie;

namespace pyllmcancel {

// A grammar of answers that llama.cpp has built for a template and its tools, laid out for a PegMachine. Immutable: the
// choices of a request share one.
class PegProgram {
  public:
    enum class Kind : uint8_t {
        nothing,
        start,
        end,
        literal,
        sequence,
        choice,
        repetition,
        ahead,     // matches, consuming nothing
        not_ahead, // matches where its child does not
        any,
        space,
        chars,
        string, // up to a quotation mark that is not escaped
        until,  // up to one of some texts, which is left
        node,   // its child, shown in the tree under a tag or a rule's name
        atomic, // its child, not shown before it is complete
        child,  // only its child
    };

    struct Node {
        Kind kind = Kind::nothing;
        bool negated = false;
        char delimiter = 0;
        uint32_t child = 0;
        int32_t least = 0;
        int32_t most = -1; // -1: without a limit
        std::vector<uint32_t> children;
        std::vector<std::pair<uint32_t, uint32_t>> ranges; // of characters
        std::string text;                                  // of a literal
        std::string tag;
        std::string rule;
        std::shared_ptr<const common_trie> marks; // of `until`
        std::vector<std::string> mark_texts;
        std::array<bool, 256> first{}; // the bytes that they begin with
        bool is_text = false;          // it tags content or reasoning
        bool shows = false;            // what has this tag changes what an answer says
    };

    // With `rules`, a tree shows the rules too, not only the tags. Throws std::exception for a text that is no grammar.
    PegProgram(const std::string & saved, bool rules);

    // As the constructor, but may return the program of one of the last requests with the same tools. Any thread.
    static std::shared_ptr<const PegProgram> recall(const std::string & saved, bool rules);

    uint32_t root() const noexcept { return root_; }
    const Node & operator[](uint32_t id) const noexcept { return nodes_[id]; }

    // Returns whether an id of a call may follow its arguments.
    bool ids_come_late() const noexcept { return ids_come_late_; }

  private:
    void load(const common_peg_arena & arena, bool rules);
    bool finds_late_id() const;

    std::vector<Node> nodes_;
    uint32_t root_ = 0;
    bool ids_come_late_ = false;
};

} // namespace pyllmcancel
