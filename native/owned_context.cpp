#include "owned_context.hpp"

#include "errors.hpp"
#include "log.hpp"

#include "ggml-cpu.h"

#include <unistd.h>

#include <algorithm>
#include <string>

namespace pyllmcancel {

OwnedContext::OwnedContext() : owner_pid_(getpid()) {}

OwnedContext::~OwnedContext() {
    if (getpid() != owner_pid_) {
        (void) context_.release();
        (void) threads_.release();
    }
}

void OwnedContext::FreePool::operator()(ggml_threadpool * pool) const noexcept { ggml_threadpool_free(pool); }

void OwnedContext::make(llama_model * model, const llama_context_params & params, const char * what) {
    clear_log_errors();
    context_.reset(llama_init_from_model(model, params));
    if (!context_) {
        throw ContextError(std::string("llama.cpp could not make ") + what + ": " + log_errors());
    }
    ggml_threadpool_params pool = ggml_threadpool_params_default(std::max(params.n_threads, params.n_threads_batch));
    // By default the workers spin between steps, for some hundredths of a second or more. They must: in a virtual machine
    // a core whose thread sleeps is given back to the host, and on a busy host it takes tens of milliseconds to get it
    // again, for every token. rest() ends the spinning where no step follows.
    threads_.reset(ggml_threadpool_new(&pool));
    if (!threads_) {
        throw ContextError("the compute threads could not be started");
    }
    llama_attach_threadpool(context_.get(), threads_.get(), nullptr);
}

void OwnedContext::rest() noexcept { ggml_threadpool_pause(threads_.get()); }

} // namespace pyllmcancel
