#include "model/model.hpp"

#include "devices/cpu_backend.hpp"
#include "devices/devices.hpp"
#include "model/large_stack.hpp"
#include "platform/assertions.hpp"
#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"
#include "platform/platform.hpp"
#include "platform/read_string.hpp"

#include "ggml-backend.h"
// llama.cpp's internal header: its API does not tell which device has a layer.
#include "llama-model.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <string_view>

// From an internal header of llama.cpp, for its tests; it can be linked because llama.cpp is linked statically.
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

namespace pyllmcancel {
namespace {

constexpr std::size_t SHORT_TEXT = 4096; // bytes that can be tokenized on any stack
constexpr std::size_t STACK_BYTES = 8 << 20;
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t STACK_BYTES_PER_BYTE = 8192; // each variable has a margin around it
#else
constexpr std::size_t STACK_BYTES_PER_BYTE = 1024; // some 400 were seen
#endif

// Held by tests/native/test_same_bits.py. Of other types ggml chooses between kernels that round differently.
bool is_invariant(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_IQ4_XS:
        case GGML_TYPE_MXFP4: return true;
        default: return false;
    }
}

bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Rows of such a matrix are copied, not multiplied. One that is multiplied, too, has a copy in panels; bitnet's has none.
bool is_looked_up(std::string_view name) {
    return ends_with(name, "_embd.weight") || ends_with(name, "embed_tokens.weight");
}

// Returns whether only look-ups read these weights; a product, if there is one, reads the copy in panels.
bool is_only_looked_up(const llama_model & model, const std::string & name, const ggml_tensor * weights) {
    return ggml_is_quantized(weights->type) && model.arch != LLM_ARCH_BITNET && is_looked_up(name);
}

bool is_on_gpu(const ggml_tensor * tensor) {
    if (!tensor->buffer || ggml_backend_buffer_is_host(tensor->buffer)) {
        return false;
    }
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    return device && is_gpu(device);
}

// 4737792 is "4.7M", 134515008 is "135M".
std::string in_thousands(uint64_t count) {
    double rest = static_cast<double>(count);
    std::size_t thousands = 0;
    constexpr std::string_view UNITS = " KMBT";
    while (rest >= 999.5 && thousands + 1 < UNITS.size()) {
        rest /= 1000;
        ++thousands;
    }
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.*f%c", rest < 99.95 ? 1 : 0, rest, UNITS[thousands]);
    return text.data();
}

} // namespace

std::vector<std::pair<std::string, int32_t>> Model::layers_by_device() const {
    std::vector<std::pair<std::string, int32_t>> found;
    const auto count = [&](ggml_backend_dev_t device) {
        const std::string name = ggml_backend_dev_name(device);
        if (found.empty() || found.back().first != name) {
            found.emplace_back(name, 0);
        }
        ++found.back().second;
    };
    for (uint32_t layer = 0; layer < handle()->hparams.n_layer_all; ++layer) {
        count(handle()->dev_layer(static_cast<int>(layer)));
    }
    count(handle()->dev_output());
    return found;
}

bool Model::is_offloaded() const {
    const auto & tensors = llama_internal_get_tensor_map(handle());
    for (uint32_t layer = 0; layer < handle()->hparams.n_layer_all; ++layer) {
        if (is_gpu(handle()->dev_layer(static_cast<int>(layer)))) {
            return true;
        }
    }
    // One whose tensors alone were put there.
    return is_gpu(handle()->dev_output()) ||
           std::any_of(tensors.begin(), tensors.end(), [](const auto & entry) { return is_on_gpu(entry.second); });
}

bool Model::has_invariant_rows() const {
#if defined(__x86_64__) || defined(_M_X64)
    const auto & tensors = llama_internal_get_tensor_map(handle());
    const bool panels = has_panels(); // without them ggml has but one kernel for each type
    const bool are_invariant = std::all_of(tensors.begin(), tensors.end(), [&](const auto & entry) {
        const auto & [name, tensor] = entry;
        const bool is_alike = !panels || !ggml_is_quantized(tensor->type) || is_in_panels(*tensor);
        return ggml_n_dims(tensor) < 2 ||
               (is_invariant(tensor->type) && (is_alike || is_only_looked_up(*handle(), name, tensor)));
    });
    return are_invariant && adapters_.empty();
#else
    return false;
#endif
}

void Model::free_copied_weights() const {
    std::map<ggml_backend_buffer_t, std::map<char *, char *>> used; // of each mapping, where tensors begin and end
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(handle())) {
        if (tensor->buffer == nullptr || std::string_view(ggml_backend_buffer_name(tensor->buffer)) != "CPU_Mapped") {
            continue;
        }
        auto & tensors = used[tensor->buffer];
        const bool is_multiplied = !has_panels() || tensor == handle()->output; // of a type without panels
        if (is_multiplied || !is_only_looked_up(*handle(), name, tensor)) {
            auto * data = static_cast<char *>(tensor->data);
            tensors[data] = data + ggml_nbytes(tensor);
        }
    }
    for (const auto & [buffer, tensors] : used) {
        auto * at = static_cast<char *>(ggml_backend_buffer_get_base(buffer));
        char * const end = at + ggml_backend_buffer_get_size(buffer);
        for (const auto & [first, last] : tensors) {
            platform::free_mapped_pages(at, first);
            at = std::max(at, last);
        }
        platform::free_mapped_pages(at, end);
    }
}

int32_t Model::n_scores() const {
    const auto size = static_cast<int32_t>(llama_model_n_cls_out(handle()));
    // Without its last layer a head has as many outputs as the layer before. llama.cpp reads `size` of them.
    const ggml_tensor * last = handle()->cls_out != nullptr ? handle()->cls_out : handle()->cls;
    return last != nullptr && last->ne[1] == size ? size : 0;
}

std::vector<std::string> Model::labels() const {
    std::vector<std::string> found;
    for (uint32_t i = 0; i < llama_model_n_cls_out(handle()); ++i) {
        if (const char * label = llama_model_cls_label(handle(), i)) {
            found.emplace_back(label);
        }
    }
    return found;
}

bool Model::can_divide_cells() const { return memory_kind() == MemoryKind::attention; }

MemoryKind Model::memory_kind() const {
    if (llama_model_is_diffusion(handle()) || !llama_model_has_decoder(handle()) || llama_model_has_encoder(handle())) {
        return MemoryKind::none;
    }
    if (llama_model_is_hybrid(handle())) {
        return MemoryKind::hybrid;
    }
    return llama_model_is_recurrent(handle()) ? MemoryKind::recurrent : MemoryKind::attention;
}

std::string Model::description() const {
    std::string text =
        read_string([&](char * buffer, std::size_t size) { return llama_model_desc(handle(), buffer, size); });
    // llama.cpp guesses the size by the number of layers, and calls SmolLM2-135M "llama 256M". A size may be followed by a
    // name: "17B.16E (Scout)".
    const std::size_t from = text.find(' ') + 1;
    std::size_t until = text.find(' ', from);
    if (text.compare(until, 2, " (") == 0) {
        until = text.find(')', until) + 1;
    }
    return text.replace(from, until - from, in_thousands(llama_model_n_params(handle())));
}

std::vector<std::pair<std::string, std::string>> Model::metadata() const {
    std::vector<std::pair<std::string, std::string>> entries;
    const int32_t count = llama_model_meta_count(handle());
    for (int32_t i = 0; i < count; ++i) {
        entries.emplace_back(
            read_string([&](char * b, std::size_t n) { return llama_model_meta_key_by_index(handle(), i, b, n); }),
            read_string([&](char * b, std::size_t n) { return llama_model_meta_val_str_by_index(handle(), i, b, n); }));
    }
    return entries;
}

std::string Model::chat_template() const {
    const char * text = llama_model_chat_template(handle(), nullptr);
    return text ? text : "";
}

std::vector<llama_token> Model::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    if (text.size() > static_cast<std::size_t>(std::numeric_limits<int32_t>::max())) {
        throw UsageError("a text of more than 2 GiB cannot be tokenized");
    }
    const auto length = static_cast<int32_t>(text.size());
    std::vector<llama_token> tokens(text.size() / 3 + 8);
    int32_t count = 0;
    const auto run = [&] {
        const AssertionsThrow guard; // of the thread that this runs on
        calls::before_tokenizing();
        const auto tokenize = [&] {
            return llama_tokenize(vocab(), text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()),
                                  add_special, parse_special);
        };
        count = tokenize();
        if (count < 0) {
            tokens.resize(static_cast<std::size_t>(-count));
            count = tokenize();
        }
    };
    // Most vocabularies' words are found with std::regex, which calls itself for every character of a word: 30,000 letters
    // without a blank would end the process.
    if (text.size() <= SHORT_TEXT) {
        run();
    } else {
        run_on_stack(STACK_BYTES + text.size() * STACK_BYTES_PER_BYTE, run);
    }
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
}

std::string Model::piece(llama_token token, bool special) const {
    if (token < 0 || token >= llama_vocab_n_tokens(vocab())) {
        throw UsageError("token " + std::to_string(token) + " is not in the vocabulary");
    }
    std::string buffer(32, '\0');
    const auto run = [&] {
        return llama_token_to_piece(vocab(), token, buffer.data(), static_cast<int32_t>(buffer.size()), 0, special);
    };
    int32_t length = run();
    if (length < 0) {
        buffer.resize(static_cast<std::size_t>(-length));
        length = run();
    }
    buffer.resize(static_cast<std::size_t>(length));
    return buffer;
}

std::vector<std::string> Model::pieces(bool special) const {
    std::vector<std::string> found;
    const int32_t count = llama_vocab_n_tokens(vocab());
    found.reserve(static_cast<std::size_t>(count));
    for (llama_token token = 0; token < count; ++token) {
        found.push_back(piece(token, special));
    }
    return found;
}

std::vector<llama_token> Model::eog_tokens() const {
    std::vector<llama_token> found;
    const int32_t count = llama_vocab_n_tokens(vocab());
    for (llama_token token = 0; token < count; ++token) {
        if (llama_vocab_is_eog(vocab(), token)) {
            found.push_back(token);
        }
    }
    return found;
}

std::size_t Model::longest_piece() const {
    switch (llama_vocab_type(vocab())) {
        case LLAMA_VOCAB_TYPE_SPM:
        case LLAMA_VOCAB_TYPE_BPE:
        case LLAMA_VOCAB_TYPE_RWKV:
        case LLAMA_VOCAB_TYPE_PLAMO2: break;
        default: return 0;
    }
    std::size_t longest = 0;
    const int32_t count = llama_vocab_n_tokens(vocab());
    for (llama_token token = 0; token < count; ++token) {
        longest = std::max(longest, piece(token, true).size());
    }
    return longest;
}

} // namespace pyllmcancel
