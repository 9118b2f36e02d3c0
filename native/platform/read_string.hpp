#pragma once

#include <cstdint>
#include <string>

namespace pyllmcancel {

// Calls `read(buffer, size)`, which reports the length it needs, until the buffer is long enough.
template <typename Read> std::string read_string(Read read) {
    std::string buffer(256, '\0');
    const int32_t length = read(buffer.data(), buffer.size());
    if (length < 0) {
        return {};
    }
    if (static_cast<std::size_t>(length) >= buffer.size()) {
        buffer.resize(static_cast<std::size_t>(length) + 1);
        read(buffer.data(), buffer.size());
    }
    buffer.resize(static_cast<std::size_t>(length));
    return buffer;
}

} // namespace pyllmcancel
