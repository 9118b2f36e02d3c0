// Loading a model: values over which llama.cpp would end the process are refused before or after it loads.

#include "model/model.hpp"

#include "devices/devices.hpp"
#include "model/gguf_check.hpp"
#include "platform/assertions.hpp"
#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"
#include "platform/log.hpp"
#include "platform/read_string.hpp"
#include "platform/steady_clock.hpp"

namespace pyllmcancel {
namespace {

// llama.cpp reports progress for every tensor. Only some reports go on to Python: for each the loading thread waits for the
// GIL, milliseconds if another thread is busy in Python.
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

// llama.cpp ends the process over a text that is to begin or to end with a token that the vocabulary lacks.
void check_vocabulary(const llama_vocab * vocab) {
    if (llama_vocab_n_tokens(vocab) <= 0) {
        throw ModelLoadError("this model has no vocabulary, not even its size");
    }
    if (llama_vocab_get_add_bos(vocab) && llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL) {
        throw ModelLoadError("tokenizer.ggml.bos_token_id is missing, and texts are to begin with this token");
    }
    if (llama_vocab_get_add_eos(vocab) && llama_vocab_eos(vocab) == LLAMA_TOKEN_NULL) {
        throw ModelLoadError("tokenizer.ggml.eos_token_id is missing, and texts are to end with this token");
    }
}

std::string value_of(const llama_model * model, const std::string & key) {
    return read_string(
        [&](char * buffer, std::size_t size) { return llama_model_meta_val_str(model, key.c_str(), buffer, size); });
}

// ggml never ends a rotation of 0 dimensions. Granite's hybrids have another key that says that nothing is rotated, and
// may have both.
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
    init_back_ends();
    Loading loading{progress, params.progress_interval_us};
    llama_model_params native = llama_model_default_params();
    PlacementParams placement(params.placement);
    placement.set(native);
    native.load_mode = params.without_weights ? LLAMA_LOAD_MODE_NONE : load_mode(params);
    native.no_alloc = params.without_weights;
    native.check_tensors = params.check_tensors;
    native.load_mtp = params.heads;
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
        check_vocabulary(model->vocab());
        check_rotation(model->handle());
        if (native.load_mode == LLAMA_LOAD_MODE_MMAP) {
            model->free_copied_weights();
        }
        if (!params.without_weights) {
            model->adapters_.load(model->handle(), params.lora);
        }
        return model;
    } catch (const LoadCancelled &) {
        throw;
    } catch (const std::runtime_error & error) { // a failed assertion, or an error of ours
        throw ModelLoadError(path + ": " + error.what());
    }
}

} // namespace pyllmcancel
