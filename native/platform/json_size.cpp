#include "platform/json_size.hpp"

namespace pyllmcancel {

namespace {

// The place after the closing quotation mark of a string whose text begins at `place`; the end if there is none.
std::size_t end_of_string(std::string_view text, std::size_t place) noexcept {
    while (place < text.size() && text[place] != '"') {
        place += text[place] == '\\' ? 2 : 1;
    }
    return place < text.size() ? place + 1 : text.size();
}

} // namespace

JsonSize json_size(std::string_view text, const JsonLimits & limits) noexcept {
    std::size_t values = 1;
    std::size_t depth = 0;
    std::size_t fields = 0;
    std::string_view string; // the last one of the outermost object: a key, when a colon follows
    std::string_view key;
    for (std::size_t place = 0; place < text.size();) {
        const char sign = text[place++];
        if (sign == '"') {
            const std::size_t end = end_of_string(text, place);
            if (depth == 1) {
                string = text.substr(place, end > place ? end - place - 1 : 0);
            }
            place = end;
            continue;
        }
        if (sign == ']' || sign == '}') {
            depth -= depth > 0;
            continue;
        }
        if (sign == ':' && depth == 1) {
            key = string;
            ++fields;
        }
        const bool opens = sign == '[' || sign == '{';
        values += opens || sign == ',' || sign == ':';
        depth += opens;
        if (values > limits.values) {
            return {JsonExcess::values, key};
        }
        if (depth > limits.depth) {
            return {JsonExcess::depth, key};
        }
        if (fields > limits.fields) {
            return {JsonExcess::fields, key};
        }
    }
    return {};
}

} // namespace pyllmcancel
