#pragma once

#include "devices/compute_threads.hpp"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace pyllmcancel {

// llama.cpp allocates and writes its bookkeeping of the cells before it asks for the cells' memory: with too many cells the
// system would end the process before llama.cpp sees that there is no memory. Throws ContextError, which says that `what`
// could not be made.
void check_bookkeeping(const llama_context_params & params, const std::string & what);

// A llama_context with compute threads of its own.
//
// In a forked child it is leaked: the threads do not exist there, and joining them would never end.
class OwnedContext {
  public:
    OwnedContext();
    ~OwnedContext();
    OwnedContext(const OwnedContext &) = delete;
    OwnedContext & operator=(const OwnedContext &) = delete;

    // Makes the context and starts its threads; with `adapt_threads`, see before_step(). Throws ContextError, which says that
    // `what` could not be made and why.
    void make(llama_model * model, const llama_context_params & params, bool adapt_threads, const std::string & what);

    // Called before each step, by the thread that computes it: adapts the number of compute threads to the free cores.
    void before_step();

    // Lets the compute threads sleep until the next step; between steps they spin.
    void rest() noexcept { threads_->rest(); }

    // The number of compute threads of the next step, or of the running one. May be called from any thread.
    int32_t n_threads() const noexcept { return threads_->n_threads(); }

    llama_context * get() const noexcept { return context_.get(); }

  private:
    struct FreeContext {
        void operator()(llama_context * context) const noexcept { llama_free(context); }
    };

    long owner_pid_;
    std::optional<ComputeThreads> threads_; // outlives context_, which computes on it
    std::unique_ptr<llama_context, FreeContext> context_;
};

} // namespace pyllmcancel
