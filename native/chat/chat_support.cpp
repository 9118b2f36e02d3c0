// The functions of llama.cpp's common.cpp and log.cpp that its chat layer and its fit call. Those files also hold
// downloads, options and threads.

#include "common.h"
#include "log.h"
#include "platform/log.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>

namespace {

constexpr int SILENT = -1;

} // namespace

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (const std::string & value : values) {
        joined += (&value == values.data() ? "" : separator) + value;
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & str, const std::string & delimiter) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (std::size_t end = str.find(delimiter); end != std::string::npos; end = str.find(delimiter, begin)) {
        parts.push_back(str.substr(begin, end - begin));
        begin = end + delimiter.size();
    }
    parts.push_back(str.substr(begin));
    return parts;
}

std::string string_repeat(const std::string & str, std::size_t n) {
    std::string repeated;
    for (std::size_t i = 0; i < n; ++i) {
        repeated += str;
    }
    return repeated;
}

void string_replace_all(std::string & s, const std::string & search, const std::string & replace) {
    if (search.empty()) {
        return;
    }
    for (std::size_t at = s.find(search); at != std::string::npos; at = s.find(search, at + replace.size())) {
        s.replace(at, search.size(), replace);
    }
}

std::vector<llama_token> common_tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                                         bool parse_special) {
    std::vector<llama_token> tokens(text.size() + 2);
    const int32_t count = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                         static_cast<int32_t>(tokens.size()), add_special, parse_special);
    tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
    return tokens;
}

std::string common_token_to_piece(const llama_vocab * vocab, llama_token token, bool special) {
    std::string piece(64, '\0');
    int32_t size = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, special);
    if (size < 0) {
        piece.resize(static_cast<std::size_t>(-size));
        size = llama_token_to_piece(vocab, token, piece.data(), -size, 0, special);
    }
    piece.resize(static_cast<std::size_t>(std::max(size, 0)));
    return piece;
}

// Below it, the arguments of a message are not even computed.
int common_log_get_verbosity_thold() { return pyllmcancel::logs_to_stderr() ? LOG_LEVEL_INFO : SILENT; }

struct common_log * common_log_main() { return nullptr; }

bool common_log_get_jsonl() { return false; }

void common_log_add_json(struct common_log * /*log*/, const char * /*type*/, const common_json & /*data*/) {}

void common_log_add(struct common_log * /*log*/, ggml_log_level level, const char * format, ...) {
    std::array<char, 4096> text{}; // the rest of a longer one is left out
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
    pyllmcancel::log_to_stderr(level, text.data());
}
