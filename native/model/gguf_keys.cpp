#include "model/gguf_keys.hpp"

namespace pyllmcancel {

GgufKeys::GgufKeys(const gguf_context * file)
    : file_(file), architecture_(text("general.architecture").value_or(std::string())) {}

std::string GgufKeys::full(std::string_view name) const { return architecture_ + "." + std::string(name); }

// Asking gguf for a value of another type than it has would end the process.
int64_t GgufKeys::find(const std::string & key, gguf_type type) const {
    const int64_t id = gguf_find_key(file_, key.c_str());
    return id >= 0 && gguf_get_kv_type(file_, id) == type ? id : -1;
}

std::optional<std::string> GgufKeys::text(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_STRING);
    return id >= 0 ? std::optional<std::string>(gguf_get_val_str(file_, id)) : std::nullopt;
}

std::optional<uint32_t> GgufKeys::number(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_UINT32);
    return id >= 0 ? std::optional<uint32_t>(gguf_get_val_u32(file_, id)) : std::nullopt;
}

std::vector<uint32_t> GgufKeys::numbers(const std::string & key) const {
    if (const auto single = number(key)) {
        return {*single};
    }
    const int64_t id = find(key, GGUF_TYPE_ARRAY);
    if (id < 0 ||
        (gguf_get_arr_type(file_, id) != GGUF_TYPE_UINT32 && gguf_get_arr_type(file_, id) != GGUF_TYPE_INT32)) {
        return {};
    }
    const auto * data = static_cast<const uint32_t *>(gguf_get_arr_data(file_, id));
    return {data, data + gguf_get_arr_n(file_, id)};
}

std::vector<double> GgufKeys::reals(int64_t id) const {
    const gguf_type type = gguf_get_kv_type(file_, id);
    if (type == GGUF_TYPE_FLOAT32) {
        return {static_cast<double>(gguf_get_val_f32(file_, id))};
    }
    if (type != GGUF_TYPE_ARRAY || gguf_get_arr_type(file_, id) != GGUF_TYPE_FLOAT32) {
        return {};
    }
    const auto * data = static_cast<const float *>(gguf_get_arr_data(file_, id));
    return {data, data + gguf_get_arr_n(file_, id)};
}

std::vector<std::string_view> GgufKeys::texts(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_ARRAY);
    std::vector<std::string_view> found;
    if (id >= 0 && gguf_get_arr_type(file_, id) == GGUF_TYPE_STRING) {
        for (std::size_t i = 0; i < gguf_get_arr_n(file_, id); ++i) {
            found.emplace_back(gguf_get_arr_str(file_, id, i)); // as llama.cpp has it, a NUL ends it
        }
    }
    return found;
}

} // namespace pyllmcancel
