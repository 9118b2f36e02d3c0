#include "devices/owned_context.hpp"

#include "platform/assertions.hpp"
#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"
#include "platform/log.hpp"
#include "platform/platform.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

[[noreturn]] void refuse(const std::string & what, const std::string & why) {
    throw ContextError("llama.cpp could not make " + what + ": " + why);
}

llama_context * init_context(llama_model * model, const llama_context_params & params, const std::string & what) {
    const AssertionsThrow guard;
    try {
        if (llama_context * context = calls::init_context(model, params)) {
            return context;
        }
    } catch (const std::exception & error) {
        refuse(what, error.what());
    }
    refuse(what, log_errors());
}

} // namespace

void check_bookkeeping(const llama_context_params & params, const std::string & what) {
    constexpr uint64_t bytes_per_cell = 64;
    if (params.n_ctx > platform::memory_bytes() / bytes_per_cell / 2) {
        refuse(what, "the bookkeeping of the cells alone would fill half of this machine's memory");
    }
}

OwnedContext::OwnedContext() : owner_pid_(platform::process_id()) {}

OwnedContext::~OwnedContext() {
    if (platform::process_id() != owner_pid_) {
        (void) context_.release();
        if (threads_) {
            threads_->leak();
        }
    }
}

void OwnedContext::make(llama_model * model, const llama_context_params & params, bool adapt_threads,
                        const std::string & what) {
    clear_log_errors();
    check_bookkeeping(params, what);
    context_.reset(init_context(model, params, what));
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
