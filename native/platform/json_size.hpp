#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pyllmcancel {

// The limits of a JSON text.
struct JsonLimits {
    std::size_t values; // scalars, arrays, objects and keys, all together
    std::size_t depth;  // levels of nested arrays and objects
    std::size_t fields; // keys of the outermost object
};

enum class JsonExcess : int32_t { none, values, depth, fields };

// The limit that a text exceeds, and the key of the outermost object (as it is spelled) under which that happened.
struct JsonSize {
    JsonExcess excess = JsonExcess::none;
    std::string_view key;
};

// Not a validation: only brackets, commas, colons and strings are looked at. An empty array or object counts twice.
JsonSize json_size(std::string_view text, const JsonLimits & limits) noexcept;

} // namespace pyllmcancel
