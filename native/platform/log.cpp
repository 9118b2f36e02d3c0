#include "platform/log.hpp"

#include "platform/platform.hpp"

#include "llama.h"
#include "src/unicode.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace pyllmcancel {
namespace {

constexpr std::size_t kept_bytes = 2000;
constexpr std::size_t longest_line = 8000;

thread_local std::string errors;

// The part of a line that the calling thread has logged: llama.cpp logs some lines in pieces, the later of which have
// no level.
struct Line {
    std::string text;
    ggml_log_level level = GGML_LOG_LEVEL_INFO;
};
thread_local Line line;

void keep(const char * text) {
    if (errors.size() < kept_bytes) {
        errors += text;
    }
}

bool as_json() {
    static const bool wanted = [] {
        const char * format = std::getenv("PYLLMCANCEL_LOG_FORMAT");
        return format != nullptr && std::strcmp(format, "json") == 0;
    }();
    return wanted;
}

const char * name_of(ggml_log_level level) {
    switch (level) {
        case GGML_LOG_LEVEL_DEBUG: return "debug";
        case GGML_LOG_LEVEL_WARN: return "warning";
        case GGML_LOG_LEVEL_ERROR: return "error";
        default: return "info";
    }
}

std::string formatted(const char * format, const std::tm & time) {
    std::array<char, 32> buffer{};
    return {buffer.data(), std::strftime(buffer.data(), buffer.size(), format, &time)};
}

void append_escape(std::string & out, std::uint32_t unit) {
    std::array<char, 8> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "\\u%04x", unit & 0xffffU);
    out += buffer.data();
}

// ASCII, as between the quotes of a JSON string: what is logged may be a model file's text.
std::string escaped(const std::string & text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const char byte = text[at];
        if (byte >= ' ' && byte < 0x7f) {
            out += byte == '"' || byte == '\\' ? std::string("\\") + byte : std::string(1, byte);
            ++at;
            continue;
        }
        std::uint32_t point = 0xfffd; // stands for bytes that are not a character
        std::size_t after = at;
        try {
            point = unicode_cpt_from_utf8(text, after);
        } catch (const std::invalid_argument &) {
            after = at + 1;
        }
        at = after;
        if (point >= 0x10000) {
            append_escape(out, 0xd800 + ((point - 0x10000) >> 10));
            append_escape(out, 0xdc00 + ((point - 0x10000) & 0x3ff));
        } else {
            append_escape(out, point);
        }
    }
    return out;
}

void write_line() {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto since_epoch = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
    const std::string fraction = std::to_string(1000 + since_epoch % 1000).replace(0, 1, ".");
    const std::tm time = platform::local_time(seconds);
    const std::string text = escaped(line.text);
    const std::string level = name_of(line.level);
    std::string out;
    if (as_json()) {
        const std::string zone = formatted("%z", time); // +hhmm
        out = R"({"time": ")" + formatted("%FT%T", time) + fraction + zone.substr(0, 3) + ":" + zone.substr(3) +
              R"(", "level": ")" + level + R"(", "logger": "llama.cpp", "message": ")" + text + "\"}\n";
    } else {
        std::string padded(8, ' ');
        for (std::size_t i = 0; i < level.size(); ++i) {
            padded[i] = static_cast<char>(level[i] - 'a' + 'A');
        }
        out = formatted("%T", time) + fraction + " " + padded + "llama.cpp: " + text + "\n";
    }
    std::fputs(out.c_str(), stderr); // unbuffered: one write
    line.text.clear();
}

void append(ggml_log_level level, std::string_view text) {
    while (!text.empty()) {
        if (line.text.empty() && level != GGML_LOG_LEVEL_CONT) {
            line.level = level;
        }
        const std::size_t end = text.find('\n');
        line.text += text.substr(0, std::min(end, longest_line));
        if ((end != std::string_view::npos && !line.text.empty()) || line.text.size() >= longest_line) {
            write_line();
        }
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
}

void on_log(ggml_log_level level, const char * text, void * /*user_data*/) {
    // A continuation has no level of its own; it is kept with the error that it goes on from, if there is one.
    if (level == GGML_LOG_LEVEL_ERROR || (level == GGML_LOG_LEVEL_CONT && !errors.empty())) {
        keep(text);
    }
    log_to_stderr(level, text);
}

} // namespace

void log_to_stderr(ggml_log_level level, const char * text) {
    if (logs_to_stderr()) {
        append(level, text);
    }
}

bool logs_to_stderr() {
    static const bool wanted = std::getenv("PYLLMCANCEL_LLAMA_LOG") != nullptr;
    return wanted;
}

ggml_log_callback log_callback() { return on_log; }

void install_log() { llama_log_set(on_log, nullptr); }

void clear_log_errors() { errors.clear(); }

std::string log_errors() {
    std::string joined;
    std::istringstream lines(errors);
    for (std::string line; std::getline(lines, line);) {
        if (line.find_first_not_of(" \t") != std::string::npos) {
            joined += (joined.empty() ? "" : "; ") + line;
        }
    }
    return joined;
}

} // namespace pyllmcancel
