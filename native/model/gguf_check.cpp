#include "model/gguf_check.hpp"

#include "model/gguf_keys.hpp"
#include "platform/errors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <unordered_map>

namespace pyllmcancel {
namespace {

// llama.cpp's, of a header that it does not install.
constexpr uint32_t most_layers = 512;
constexpr uint32_t most_experts = 1024;
// llama.cpp makes an entry for each token before it looks at the tensors.
constexpr uint32_t most_tokens = 1U << 24U;
// llama.cpp multiplies it by the number of sequences, in 32 bits.
constexpr uint32_t most_window = 1U << 24U;
constexpr uint32_t most_int = std::numeric_limits<int32_t>::max();

struct Range {
    const char * name;
    uint32_t least;
    uint32_t most;
};

// llama.cpp returns the last ones as int32_t.
constexpr std::array ranges = {
    Range{"block_count", 1, most_layers},          Range{"expert_count", 0, most_experts},
    Range{"vocab_size", 0, most_tokens},           Range{"context_length", 1, most_int},
    Range{"embedding_length", 1, most_int},        Range{"embedding_length_out", 0, most_int},
    Range{"feed_forward_length", 0, most_int},     Range{"attention.head_count", 0, most_int},
    Range{"attention.head_count_kv", 0, most_int}, Range{"attention.sliding_window", 0, most_window},
};

constexpr std::array rope_scalings = {"none", "linear", "yarn", "longrope"};

// Hybrids in which a layer is recurrent exactly if its entry of attention.head_count_kv is 0.
constexpr std::array split_by_heads = {"bailingmoe3", "granitehybrid", "jamba",          "kimi-linear", "lfm2",
                                       "lfm2moe",     "nemotron_h",    "nemotron_h_moe", "plamo2"};

template <typename Names> bool is_one_of(const std::string & name, const Names & names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

[[noreturn]] void refuse(const std::string & key, const std::string & why) { throw ModelLoadError(key + " " + why); }

std::string list(const std::vector<uint32_t> & numbers, uint32_t culprit) {
    return (numbers.size() > 1 ? "has the entry " : "is ") + std::to_string(culprit);
}

void check_ranges(const GgufKeys & keys) {
    for (const Range & range : ranges) {
        const std::vector<uint32_t> numbers = keys.numbers(keys.full(range.name));
        for (const uint32_t number : numbers) {
            if (number < range.least || number > range.most) {
                refuse(keys.full(range.name), list(numbers, number) + "; it must lie between " +
                                                  std::to_string(range.least) + " and " + std::to_string(range.most));
            }
        }
    }
    const uint32_t n_layer = keys.number(keys.full("block_count")).value_or(most_layers);
    const std::string predicted = keys.full("nextn_predict_layers");
    if (keys.number(predicted).value_or(0) >= n_layer) {
        refuse(predicted, "leaves no layer to compute: it must be less than " + keys.full("block_count"));
    }
}

// No model computes with NaN, and ggml ends the process over an epsilon that is not at least 0.
void check_reals(const GgufKeys & keys) {
    for (int64_t id = 0; id < gguf_get_n_kv(keys.file()); ++id) {
        const std::string key = gguf_get_key(keys.file(), id);
        if (key.rfind(keys.architecture() + ".", 0) != 0 && key.rfind("xielu.", 0) != 0) {
            continue;
        }
        const bool is_epsilon = key.find("epsilon") != std::string::npos || key.find(".eps") != std::string::npos;
        for (const double real : keys.reals(id)) {
            if (std::isnan(real)) {
                refuse(key, "is not a number (NaN)");
            }
            if (is_epsilon && !(real >= 0.0 && std::isfinite(real))) {
                refuse(key, "is " + std::to_string(real) + "; it must be 0 or a positive, finite number");
            }
        }
    }
}

void check_expert_groups(const GgufKeys & keys, uint32_t n_experts) {
    const std::string count_key = keys.full("expert_group_count");
    const std::string used_key = keys.full("expert_group_used_count");
    const uint32_t n_groups = keys.number(count_key).value_or(0);
    const uint32_t n_used = keys.number(used_key).value_or(0);
    if (n_groups > 0 && n_groups >= n_experts) {
        refuse(count_key, "must be less than " + keys.full("expert_count"));
    }
    if (n_groups > 1 && n_experts % n_groups != 0) {
        refuse(count_key, "must divide " + keys.full("expert_count"));
    }
    if (n_groups > 1 && (n_used == 0 || n_used >= n_groups)) {
        refuse(used_key, "must lie between 1 and " + std::to_string(n_groups - 1) + ", below " + count_key);
    }
}

void check_experts(const GgufKeys & keys) {
    const std::string used_key = keys.full("expert_used_count");
    uint32_t n_experts = keys.number(keys.full("expert_count")).value_or(0);
    const std::vector<uint32_t> used = keys.numbers(used_key);
    uint32_t most_used = used.empty() ? 0 : *std::max_element(used.begin(), used.end());
    // These treat a single expert as none.
    if (n_experts <= 1 && (keys.architecture() == "hunyuan_vl" || keys.architecture() == "hunyuan-dense")) {
        n_experts = most_used = 0;
    }
    if (most_used > n_experts) {
        refuse(used_key, list(used, most_used) + ", more than " + keys.full("expert_count"));
    }
    if (n_experts > 0 && most_used == 0) {
        refuse(used_key, "must be at least 1 in a model of experts");
    }
    check_expert_groups(keys, n_experts);
}

// llama.cpp ends the process at the first step of such a hybrid if all its layers are of one kind: it fills inputs that
// no layer uses.
void check_kinds_of_layers(const GgufKeys & keys) {
    if (!is_one_of(keys.architecture(), split_by_heads)) {
        return;
    }
    const std::string key = keys.full("attention.head_count_kv");
    const uint32_t n_layer = keys.number(keys.full("block_count")).value_or(0);
    const uint32_t n_predicted = keys.number(keys.full("nextn_predict_layers")).value_or(0);
    std::vector<uint32_t> heads = keys.numbers(key);
    heads.resize(std::min<std::size_t>(heads.size(), n_layer - n_predicted));
    const auto n_recurrent = static_cast<std::size_t>(std::count(heads.begin(), heads.end(), 0U));
    if (!heads.empty() && (n_recurrent == 0 || n_recurrent == heads.size())) {
        refuse(key, "says that the layers of this hybrid model are all of one kind, which llama.cpp cannot compute");
    }
}

void check_rope(const GgufKeys & keys) {
    const std::string key = keys.full("rope.scaling.type");
    const auto scaling = keys.text(key);
    if (scaling && !is_one_of(*scaling, rope_scalings)) {
        refuse(key, "is none of: none, linear, yarn, longrope");
    }
}

// A head's first n_rotated numbers are rotated, in pairs: ggml ends the process over an odd number, or more than a head has.
void check_rotated(const GgufKeys & keys, const char * name, const char * head_name) {
    const auto n_rotated = keys.number(keys.full(name));
    const std::vector<uint32_t> heads = keys.numbers(keys.full("attention.head_count"));
    if (!n_rotated || heads.empty() || heads.front() == 0) {
        return;
    }
    const uint32_t by_default = keys.number(keys.full("embedding_length")).value_or(0) / heads.front();
    const uint32_t head =
        keys.number(keys.full(head_name)).value_or(keys.number(keys.full("attention.key_length")).value_or(by_default));
    if (*n_rotated % 2 != 0 || *n_rotated > head) {
        refuse(keys.full(name), "is " + std::to_string(*n_rotated) + "; it must be even, and no more than a head's " +
                                    std::to_string(head));
    }
}

bool has_no_words(const GgufKeys & keys) {
    const auto model = keys.text("tokenizer.ggml.model");
    return model && (*model == "none" || *model == "no_vocab");
}

void check_tokens(const GgufKeys & keys) {
    const std::string key = "tokenizer.ggml.tokens";
    std::unordered_map<std::string, std::size_t> ids;
    std::size_t id = 0;
    for (const std::string_view token : keys.texts(key)) {
        // llama.cpp's name for it.
        const std::string name = token.empty() ? "[EMPTY_" + std::to_string(id) + "]" : std::string(token);
        const auto [first, is_new] = ids.emplace(name, id);
        if (!is_new) {
            refuse(key,
                   "has the same text for the tokens " + std::to_string(first->second) + " and " + std::to_string(id));
        }
        ++id;
    }
}

bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Integer tensors are for look-ups; llama.cpp ends the process when it multiplies with one.
void check_tensors(const gguf_context * file) {
    for (int64_t id = 0; id < gguf_get_n_tensors(file); ++id) {
        const std::string name = gguf_get_tensor_name(file, id);
        const ggml_type type = gguf_get_tensor_type(file, id);
        const bool is_whole =
            type == GGML_TYPE_I8 || type == GGML_TYPE_I16 || type == GGML_TYPE_I32 || type == GGML_TYPE_I64;
        const bool looks_up = name.find("tid2eid") != std::string::npos || name == "d2t" || name == "t2d";
        // ggml's CPU kernels add and multiply rows of F32 with nothing else, and llama.cpp's converter writes nothing else.
        const bool is_row = ends_with(name, "norm.weight") || ends_with(name, ".bias") || ends_with(name, ".ssm_a") ||
                            ends_with(name, ".ssm_d");
        if ((is_whole && !looks_up) || (is_row && type != GGML_TYPE_F32) || type == GGML_TYPE_F64) {
            refuse("the tensor " + name,
                   std::string("is of type ") + ggml_type_name(type) + ", with which llama.cpp cannot compute");
        }
    }
}

} // namespace

void check_gguf(const gguf_context * file, bool require_vocabulary) {
    const GgufKeys keys(file);
    if (keys.architecture().empty()) {
        return;
    }
    check_ranges(keys);
    check_experts(keys);
    check_kinds_of_layers(keys);
    check_rope(keys);
    check_rotated(keys, "rope.dimension_count", "attention.key_length");
    check_rotated(keys, "rope.dimension_count_swa", "attention.key_length_swa");
    check_reals(keys);
    if (has_no_words(keys)) {
        if (require_vocabulary) {
            refuse("tokenizer.ggml.model",
                   "says that there is no vocabulary, so it can neither read text nor write it");
        }
        return;
    }
    check_tokens(keys);
    check_tensors(file);
}

void check_gguf(const std::string & path, bool require_vocabulary) {
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(
        gguf_init_from_file(path.c_str(), {/* no_alloc */ true, /* ctx */ nullptr}), gguf_free);
    if (file) {
        check_gguf(file.get(), require_vocabulary);
    }
}

} // namespace pyllmcancel
