#include "chat/chat_form.hpp"

#include "chat-peg-parser.h"
#include "chat.h"
#include "json.h"
#include "platform/errors.hpp"

#include <exception>
#include <new>
#include <string_view>

namespace pyllmcancel {

ChatForm::ChatForm(const std::string & text) {
    try {
        const common_json json = common_json::parse(text);
        if (!json.is_object()) {
            throw UsageError("not an object");
        }
        const std::string format = json.value("format", "Content-only");
        dialect_ = format == common_chat_format_name(COMMON_CHAT_FORMAT_PEG_GEMMA4)       ? Dialect::gemma4
                   : format == common_chat_format_name(COMMON_CHAT_FORMAT_PEG_MINIMAX_M3) ? Dialect::minimax_m3
                                                                                          : Dialect::common;
        plain_arguments_ = dialect_ == Dialect::common;
        program_ = PegProgram::recall(json.value("parser", ""), dialect_ != Dialect::common);
        prompt_ = json.value("generation_prompt", "");
        is_continuation_ = json.value("is_continuation", false);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        throw UsageError(std::string("not a form of answers: ") + error.what());
    }
}

common_chat_msg ChatForm::read(const PegTree & tree, const std::string & text) const {
    common_peg_ast_arena ast;
    for (const PegTree::Node & node : tree.nodes) {
        const auto first = tree.children.begin() + node.first_child;
        const PegProgram::Node & rule = (*program_)[node.id];
        const auto part = std::string_view(text).substr(node.begin, node.end - node.begin);
        ast.add_node(rule.rule, rule.tag, node.begin, node.end, part, {first, first + node.n_children}, node.partial);
    }
    common_peg_parse_result result(COMMON_PEG_PARSE_RESULT_SUCCESS, 0, text.size(),
                                   {tree.roots.begin(), tree.roots.end()});
    common_chat_msg message;
    message.role = "assistant";
    switch (dialect_) {
        case Dialect::common: common_chat_peg_mapper(message).from_ast(ast, result); break;
        case Dialect::gemma4: common_chat_peg_gemma4_mapper(message).from_ast(ast, result); break;
        case Dialect::minimax_m3: common_chat_peg_minimax_m3_mapper(message).from_ast(ast, result); break;
    }
    return message;
}

} // namespace pyllmcancel
