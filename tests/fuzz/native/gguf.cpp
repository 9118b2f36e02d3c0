// libFuzzer's entry: the header of a model file, as read by gguf and as looked through by the core before llama.cpp.

#include "platform/errors.hpp"
#include "model/gguf_check.hpp"

#include "ggml.h"
#include "gguf.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace {

void keep_quiet(ggml_log_level /*level*/, const char * /*text*/, void * /*user_data*/) {}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, std::size_t size) {
    ggml_log_set(keep_quiet, nullptr);
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(
        gguf_init_from_buffer(data, size, {/* no_alloc */ true, /* ctx */ nullptr}), gguf_free);
    if (file) {
        try {
            pyllmcancel::check_gguf(file.get(), (size % 2) != 0);
        } catch (const pyllmcancel::ModelLoadError &) {
        }
    }
    return 0;
}
