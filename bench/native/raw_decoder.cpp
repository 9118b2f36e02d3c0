#include "raw_decoder.hpp"

#include "clock.hpp"

#include "devices/cpu_backend.hpp"

#include "ggml.h"

#include <stdexcept>

namespace probe {

using pyllmcancel::AbortGate;
using pyllmcancel::CancelFlag;
using pyllmcancel::StepItem;

void RawDecoder::FreePool::operator()(ggml_threadpool * pool) const noexcept { pyllmcancel::free_threadpool(pool); }

RawDecoder::RawDecoder(std::shared_ptr<const pyllmcancel::Model> model, const RawParams & params)
    : model_(std::move(model)), n_vocab_(llama_vocab_n_tokens(model_->vocab())), n_past_(params.n_seq_max, 0) {
    llama_context_params native = llama_context_default_params();
    native.n_ctx = params.n_ctx;
    native.n_batch = params.n_batch;
    native.n_ubatch = params.n_ubatch;
    native.n_seq_max = params.n_seq_max;
    native.n_threads = params.n_threads;
    native.n_threads_batch = params.n_threads;
    native.kv_unified = params.kv_unified;
    native.flash_attn_type = static_cast<llama_flash_attn_type>(params.flash_attention);
    native.no_perf = true;
    if (params.n_outputs > 0) {
        native.n_outputs_max = params.n_outputs;
    }
    context_.reset(llama_init_from_model(model_->handle(), native));
    if (!context_) {
        throw std::runtime_error("llama.cpp could not make the context");
    }
    attach_threads(params);
}

void RawDecoder::attach_threads(const RawParams & params) {
    if (params.poll < 0) {
        return;
    }
    ggml_threadpool_params pool = ggml_threadpool_params_default(params.n_threads);
    pool.poll = static_cast<uint32_t>(params.poll);
    threads_.reset(pyllmcancel::new_threadpool(pool));
    llama_attach_threadpool(context_.get(), threads_.get(), nullptr);
}

void RawDecoder::clear() {
    llama_memory_clear(llama_get_memory(context_.get()), false);
    n_past_.assign(n_past_.size(), 0);
}

void RawDecoder::fill(const std::vector<StepItem> & items) {
    batch_.clear();
    for (const StepItem & item : items) {
        const llama_pos begin = n_past_.at(static_cast<std::size_t>(item.seq));
        for (llama_pos pos = begin; pos < begin + item.n_tokens; ++pos) {
            const auto token = static_cast<llama_token>(chance_() % static_cast<uint32_t>(n_vocab_));
            batch_.add(token, pos, item.seq, pos + 1 == begin + item.n_tokens);
        }
    }
}

int32_t RawDecoder::run(const std::vector<StepItem> & items) {
    const int32_t rc = llama_decode(context_.get(), batch_.view());
    llama_synchronize(context_.get());
    for (const StepItem & item : items) {
        llama_pos & n_past = n_past_.at(static_cast<std::size_t>(item.seq));
        if (rc == 0) {
            n_past += item.n_tokens;
        } else {
            llama_memory_seq_rm(llama_get_memory(context_.get()), item.seq, n_past, -1);
        }
    }
    return rc;
}

bool RawDecoder::note_time(void * self) noexcept {
    static_cast<RawDecoder *>(self)->times_.push_back(now_ns());
    return false;
}

void RawDecoder::set_callback(Callback callback) {
    switch (callback) {
        case Callback::none: llama_set_abort_callback(context_.get(), nullptr, nullptr); break;
        case Callback::gate: llama_set_abort_callback(context_.get(), AbortGate::poll, &gate_); break;
        case Callback::clock: llama_set_abort_callback(context_.get(), note_time, this); break;
    }
}

AbortGate::Ticket RawDecoder::arm(const std::vector<StepItem> & items, const CancelFlag & flag) {
    std::vector<AbortGate::Member> members;
    for (const StepItem & item : items) {
        members.push_back({&flag, item.n_tokens});
    }
    return gate_.arm({}, std::move(members), false, {});
}

int64_t RawDecoder::decode(const std::vector<StepItem> & items, Callback callback) {
    const CancelFlag flag;
    fill(items);
    set_callback(callback);
    const AbortGate::Ticket ticket = callback == Callback::gate ? arm(items, flag) : gate_.arm({}, {}, false, {});
    times_.clear();
    const int64_t begin = now_ns();
    const int32_t rc = run(items);
    const int64_t end = now_ns();
    if (rc != 0) {
        throw std::runtime_error("llama_decode said " + std::to_string(rc));
    }
    return end - begin;
}

std::vector<int64_t> RawDecoder::node_times(const std::vector<StepItem> & items) {
    times_.reserve(1U << 16U);
    const int64_t begin = now_ns();
    decode(items, Callback::clock);
    std::vector<int64_t> times = times_;
    for (int64_t & time : times) {
        time -= begin;
    }
    return times;
}

AbortTiming RawDecoder::abort_after(const std::vector<StepItem> & items, int64_t delay_ns) {
    const auto flag = std::make_shared<CancelFlag>();
    fill(items);
    set_callback(Callback::gate);
    const AbortGate::Ticket ticket = arm(items, *flag);
    DelayedRaise raise(flag, delay_ns);
    const int64_t begin = now_ns();
    const int32_t rc = run(items);
    const int64_t end = now_ns();
    return {rc == 2, end - raise.finish(), end - begin, gate_.polls()};
}

AbortTiming RawDecoder::abort_at(const std::vector<StepItem> & items, uint32_t node) {
    struct Trap {
        uint32_t node;
        uint32_t asked;
        int64_t sprung_at;
    } trap{node, 0, 0};
    const auto ask = [](void * data) {
        auto & self = *static_cast<Trap *>(data);
        if (++self.asked == self.node) {
            self.sprung_at = now_ns();
        }
        return self.asked >= self.node;
    };
    fill(items);
    llama_set_abort_callback(context_.get(), ask, &trap);
    const int64_t begin = now_ns();
    const int32_t rc = run(items);
    const int64_t end = now_ns();
    llama_set_abort_callback(context_.get(), nullptr, nullptr);
    return {rc == 2, end - trap.sprung_at, end - begin, trap.asked};
}

} // namespace probe
