#pragma once

#include "llama.h"

#include <cstdint>
#include <memory>

struct ggml_threadpool;

namespace pyllmcancel {

// A llama_context with compute threads of its own.
//
// In a forked child it is leaked: the threads do not exist there, and to join them would be to wait for ever.
class OwnedContext {
  public:
    OwnedContext();
    ~OwnedContext();
    OwnedContext(const OwnedContext &) = delete;
    OwnedContext & operator=(const OwnedContext &) = delete;

    // Makes the context and starts its threads. Throws ContextError with `what` could not be done and why.
    void make(llama_model * model, const llama_context_params & params, const char * what);

    // Have the compute threads sleep until the next step; between steps they spin for it.
    void rest() noexcept;

    llama_context * get() const noexcept { return context_.get(); }

  private:
    struct FreeContext {
        void operator()(llama_context * context) const noexcept { llama_free(context); }
    };
    struct FreePool {
        void operator()(ggml_threadpool * pool) const noexcept;
    };

    long owner_pid_;
    std::unique_ptr<ggml_threadpool, FreePool> threads_; // outlives context_, which computes on it
    std::unique_ptr<llama_context, FreeContext> context_;
};

} // namespace pyllmcancel
