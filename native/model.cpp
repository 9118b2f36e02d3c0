#include "model.hpp"

#include "assertions.hpp"
#include "errors.hpp"
#include "gguf_check.hpp"
#include "llama_calls.hpp"
#include "log.hpp"
#include "roomy_stack.hpp"
#include "steady_clock.hpp"

#include "ggml-backend.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>

// From llama.cpp's internal header, for its tests: to be had because it is linked statically.
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

namespace pyllmcancel {
namespace {

constexpr std::size_t SHORT_TEXT = 4096; // bytes that any stack has room for
constexpr std::size_t STACK_BYTES = 8 << 20;
constexpr std::size_t STACK_BYTES_PER_BYTE = 1024; // some 400 were seen

void init_backend() {
    static std::once_flag once;
    std::call_once(once, [] {
        install_log();
        install_assertions();
        llama_backend_init();
    });
}

// llama.cpp tells its progress for every tensor. Python hears of it, and can cancel, now and then only: each time the
// loading thread waits for the GIL, for milliseconds if another thread is busy in Python.
struct Loading {
    const Progress & progress;
    int64_t interval_us;
    int64_t next_at = 0;
    bool cancelled = false;
};

bool on_progress(float fraction, void * user_data) {
    auto & loading = *static_cast<Loading *>(user_data);
    const int64_t now = now_us();
    const bool is_due = fraction >= 1.0f || now >= loading.next_at;
    if (loading.progress && is_due && !loading.cancelled) {
        loading.next_at = now + loading.interval_us;
        loading.cancelled = !loading.progress(fraction);
    }
    return !loading.cancelled;
}

llama_load_mode load_mode(const ModelParams & params) {
    if (params.use_mlock) {
        return params.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK;
    }
    return params.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
}

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

// Experts, of three dimensions, are multiplied row by row in any case.
bool is_repacked(const ggml_tensor * tensor) {
    return tensor->buffer && ggml_n_dims(tensor) == 2 &&
           std::string_view(ggml_backend_buffer_name(tensor->buffer)) == "CPU_REPACK";
}

// llama.cpp ends the process over a text that is to begin or to end with a token that there is not.
void check_vocabulary(const llama_vocab * vocab, bool required) {
    const bool can_read = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
    if (llama_vocab_n_tokens(vocab) <= 0 || (required && !can_read)) {
        throw ModelLoadError("this model has no vocabulary, so it can neither read text nor write it");
    }
    if (!can_read) {
        return;
    }
    const bool is_bert = llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_WPM;
    if ((is_bert || llama_vocab_get_add_bos(vocab)) && llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL) {
        throw ModelLoadError("tokenizer.ggml.bos_token_id is missing, and texts are to begin with this token");
    }
    if (llama_vocab_get_add_eos(vocab) && llama_vocab_eos(vocab) == LLAMA_TOKEN_NULL) {
        throw ModelLoadError("tokenizer.ggml.eos_token_id is missing, and texts are to end with this token");
    }
    if (is_bert && llama_vocab_sep(vocab) == LLAMA_TOKEN_NULL) {
        throw ModelLoadError("tokenizer.ggml.seperator_token_id is missing, and texts are to end with this token");
    }
}

std::string value_of(const llama_model * model, const std::string & key) {
    return read_string(
        [&](char * buffer, std::size_t size) { return llama_model_meta_val_str(model, key.c_str(), buffer, size); });
}

// ggml never comes to the end of rotating by no dimensions. Granite's hybrids have another way to say that nothing is
// rotated, and may say both.
void check_rotation(const llama_model * model) {
    const std::string arch = value_of(model, "general.architecture");
    if (llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NONE || arch == "granitehybrid") {
        return;
    }
    for (const char * name : {".rope.dimension_count", ".rope.dimension_count_swa"}) {
        if (value_of(model, arch + name) == "0") {
            throw ModelLoadError(arch + name + " is 0, and this architecture rotates");
        }
    }
}

} // namespace

std::shared_ptr<Model> Model::load(const std::string & path, const ModelParams & params, const Progress & progress) {
    init_backend();
    Loading loading{progress, params.progress_interval_us};
    llama_model_params native = llama_model_default_params();
    native.n_gpu_layers = params.n_gpu_layers;
    native.load_mode = load_mode(params);
    native.check_tensors = params.check_tensors;
    native.progress_callback = on_progress;
    native.progress_callback_user_data = &loading;
    const AssertionsThrow guard;
    try {
        check_gguf(path, params.require_vocabulary);
        clear_log_errors(); // what gguf could not read llama.cpp cannot, and says so again
        std::shared_ptr<Model> model(new Model(calls::load_model(path.c_str(), native)));
        if (loading.cancelled) {
            throw LoadCancelled();
        }
        if (!model->handle()) {
            const std::string why = log_errors();
            throw ModelLoadError(why.empty() ? "llama.cpp could not load this file" : why);
        }
        check_vocabulary(model->vocab(), params.require_vocabulary);
        check_rotation(model->handle());
        model->load_adapters(params.lora);
        return model;
    } catch (const LoadCancelled &) {
        throw;
    } catch (const std::runtime_error & error) { // a failed assertion, or an error of ours
        throw ModelLoadError(path + ": " + error.what());
    }
}

void Model::load_adapters(const std::vector<std::pair<std::string, float>> & lora) {
    for (const auto & [path, scale] : lora) {
        clear_log_errors();
        llama_adapter_lora * adapter = llama_adapter_lora_init(handle(), path.c_str());
        if (!adapter) {
            throw ModelLoadError("no LoRA adapter for this model is " + path + ": " + log_errors());
        }
        adapters_.push_back(adapter);
        scales_.push_back(scale);
    }
}

void Model::apply_adapters(llama_context * context) const {
    if (!adapters_.empty()) {
        // llama.cpp takes the arrays as mutable, and copies them.
        auto adapters = adapters_;
        auto scales = scales_;
        llama_set_adapters_lora(context, adapters.data(), adapters.size(), scales.data());
    }
}

bool Model::multiplies_rows_in_fours() const {
    std::size_t all = 0;
    std::size_t repacked = 0;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(handle())) {
        all += ggml_nbytes(tensor);
        repacked += is_repacked(tensor) ? ggml_nbytes(tensor) : 0;
    }
    return 2 * repacked > all;
}

bool Model::makes_logits_in_fours() const {
    const auto & tensors = llama_internal_get_tensor_map(handle());
    return std::any_of(tensors.begin(), tensors.end(), [](const auto & entry) {
        // Tied, the matrix of the embeddings is there twice.
        return (entry.first == "output.weight" || entry.first == "token_embd.weight") && is_repacked(entry.second);
    });
}

bool Model::can_divide_cells() const {
    return memory_kind() == MemoryKind::attention && llama_model_n_swa(model_.get()) <= 0;
}

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
    return read_string([&](char * buffer, std::size_t size) { return llama_model_desc(handle(), buffer, size); });
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
        on_stack_of(STACK_BYTES + text.size() * STACK_BYTES_PER_BYTE, run);
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
