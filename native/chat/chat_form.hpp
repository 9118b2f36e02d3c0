#pragma once

#include "chat/peg_machine.hpp"
#include "chat/peg_program.hpp"

#include <cstdint>
#include <memory>
#include <string>

struct common_chat_msg;

namespace pyllmcancel {

// The form of the answers to one request, as ChatTemplate::apply returned it. Immutable; the request's choices share
// it.
class ChatForm {
  public:
    // Throws UsageError for a text that is not one.
    explicit ChatForm(const std::string & json);

    const std::shared_ptr<const PegProgram> & program() const noexcept { return program_; }
    const std::string & prompt() const noexcept { return prompt_; }
    bool is_continuation() const noexcept { return is_continuation_; }

    // The parts of the tree, as llama.cpp understands the tags of this form.
    common_chat_msg read(const PegTree & tree, const std::string & text) const;

    // Returns whether the arguments of a call stand in the answer unchanged.
    bool has_plain_arguments() const noexcept { return plain_arguments_; }

  private:
    enum class Dialect : uint8_t { common, gemma4, minimax_m3 };

    Dialect dialect_ = Dialect::common;
    std::shared_ptr<const PegProgram> program_;
    std::string prompt_;
    bool is_continuation_ = false;
    bool plain_arguments_ = true;
};

} // namespace pyllmcancel
