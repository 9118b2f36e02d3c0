#include "owned_context.hpp"

#include "errors.hpp"
#include "log.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>

namespace pyllmcancel {

OwnedContext::OwnedContext() : owner_pid_(getpid()) {}

OwnedContext::~OwnedContext() {
    if (getpid() != owner_pid_) {
        (void) context_.release();
        if (threads_) {
            threads_->leak();
        }
    }
}

void OwnedContext::make(llama_model * model, const llama_context_params & params, bool adapt_threads,
                        const char * what) {
    clear_log_errors();
    context_.reset(llama_init_from_model(model, params));
    if (!context_) {
        throw ContextError(std::string("llama.cpp could not make ") + what + ": " + log_errors());
    }
    threads_.emplace(std::max(params.n_threads, params.n_threads_batch), adapt_threads);
    llama_attach_threadpool(context_.get(), threads_->pool(), nullptr);
}

void OwnedContext::before_step() {
    if (threads_->adapt()) {
        llama_attach_threadpool(context_.get(), threads_->pool(), nullptr);
        llama_set_n_threads(context_.get(), n_threads(), n_threads());
    }
}

} // namespace pyllmcancel
