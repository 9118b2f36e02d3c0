#include "devices/compute_threads.hpp"

#include "devices/cpu_backend.hpp"
#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"
#include "platform/steady_clock.hpp"

#include "ggml.h"

namespace pyllmcancel {

void ComputeThreads::FreePool::operator()(ggml_threadpool * pool) const noexcept { free_threadpool(pool); }

namespace {

ggml_threadpool * start_threads(ggml_threadpool_params & params) {
    PYLLMCANCEL_FAIL(start_threads, nullptr)
    return new_threadpool(params);
}

} // namespace

ComputeThreads::Pool ComputeThreads::make_pool(int32_t n_threads, bool spins) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.paused = true;
    if (!spins) {
        params.poll = 0;
    }
    Pool pool(start_threads(params));
    if (!pool) {
        throw ContextError("the compute threads could not be started");
    }
    return pool;
}

// The workers spin between steps, for hundredths of a second or more: in a virtual machine a core whose thread sleeps is
// given back to the host, and on a busy host it takes tens of milliseconds to get it again, for every token. rest() ends
// the spinning where no step follows. The smaller pools do not spin: their threads are idle while another pool is used.
ComputeThreads::ComputeThreads(int32_t most, bool adapts) : most_(most), all_(make_pool(most, true)), n_threads_(most) {
    if (adapts && most > 1) {
        some_ = most > 2 ? make_pool(most - 1, false) : nullptr;
        one_ = make_pool(1, false);
        policy_.emplace(most);
        clock_.emplace();
        // The first step knows what other programs do by then.
        take_reading();
        policy_->rest();
    }
}

bool ComputeThreads::adapt() {
    if (policy_ && policy_->is_due(now_us())) {
        take_reading();
    }
    if (!policy_ || policy_->n_threads() == n_threads()) {
        return false;
    }
    pause_threadpool(pool()); // of the former pool
    n_threads_.store(policy_->n_threads(), std::memory_order_relaxed);
    return true;
}

void ComputeThreads::take_reading() {
    if (const auto times = clock_->read()) {
        policy_->take(*times, policy_->is_stale(times->at) ? clock_->n_crowded_out() : 0);
    }
}

ggml_threadpool * ComputeThreads::pool() const noexcept {
    const int32_t count = n_threads();
    return (count == most_ ? all_ : count == 1 ? one_ : some_).get();
}

void ComputeThreads::rest() noexcept {
    pause_threadpool(pool());
    if (policy_) {
        policy_->rest();
    }
}

void ComputeThreads::leak() noexcept {
    for (Pool * pool : {&all_, &some_, &one_}) {
        (void) pool->release();
    }
}

} // namespace pyllmcancel
