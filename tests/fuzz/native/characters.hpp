#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// The size of the character that begins here; 0 if there is none.
inline std::size_t character_at(std::string_view text, std::size_t begin) {
    const auto byte = static_cast<unsigned char>(text[begin]);
    const std::size_t size = byte < 0x80   ? 1
                             : byte < 0xC2 ? 0
                             : byte < 0xE0 ? 2
                             : byte < 0xF0 ? 3
                             : byte < 0xF5 ? 4
                                           : 0;
    if (size == 0 || begin + size > text.size()) {
        return 0;
    }
    for (std::size_t i = 1; i < size; ++i) {
        if ((static_cast<unsigned char>(text[begin + i]) & 0xC0U) != 0x80U) {
            return 0;
        }
    }
    const auto second = size > 2 ? static_cast<unsigned char>(text[begin + 1]) : 0;
    const bool wrong = (byte == 0xE0 && second < 0xA0) || (byte == 0xED && second > 0x9F) ||
                       (byte == 0xF0 && second < 0x90) || (byte == 0xF4 && second > 0x8F);
    return wrong ? 0 : size;
}

// Whole characters, as a Python string has them, with a question mark for each other byte.
inline std::vector<std::string> characters(std::string_view bytes) {
    std::vector<std::string> found;
    for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t size = character_at(bytes, at);
        found.push_back(size == 0 ? "?" : std::string(bytes.substr(at, size)));
        at += size == 0 ? 1 : size;
    }
    return found;
}
