#include "embedder.hpp"

#include "errors.hpp"
#include "llama_calls.hpp"

#include <algorithm>
#include <cmath>

namespace pyllmcancel {
namespace {

llama_context_params native_params(const EmbedderParams & params, AbortGate & gate) {
    llama_context_params native = llama_context_default_params();
    native.n_ctx = params.n_ctx;
    native.n_batch = params.n_batch;
    // One step is one ubatch: pooling sees no further, and what a step that did not return ok computed is gone.
    native.n_ubatch = params.n_batch;
    native.n_seq_max = params.n_seq_max;
    native.n_threads = params.n_threads;
    native.n_threads_batch = params.n_threads_batch;
    native.embeddings = true;
    native.pooling_type = static_cast<enum llama_pooling_type>(params.pooling);
    native.offload_kqv = params.offload_kqv;
    native.type_k = static_cast<ggml_type>(params.type_k);
    native.type_v = static_cast<ggml_type>(params.type_v);
    native.flash_attn_type = static_cast<llama_flash_attn_type>(params.flash_attention);
    native.no_perf = true;
    // Any text may use any cell.
    native.kv_unified = true;
    gate.install(native, params.cut_seconds);
    return native;
}

} // namespace

Embedder::Embedder(std::shared_ptr<const Model> model, const EmbedderParams & params)
    : model_(std::move(model)), params_(params), kind_(model_->memory_kind()) {
    if (llama_model_has_encoder(model_->handle()) && llama_model_has_decoder(model_->handle())) {
        throw ContextError("this model translates one text into another, so it has no embedding to pool");
    }
    if (params.n_seq_max < 1 || params.n_seq_max > llama_max_parallel_sequences()) {
        throw ContextError("n_seq_max must lie between 1 and " + std::to_string(llama_max_parallel_sequences()));
    }
    context_.make(model_->handle(), native_params(params, gate_), params.adapt_threads, "a context for embeddings");
    pooling_ = llama_pooling_type(context_.get());
    if (pooling_ == LLAMA_POOLING_TYPE_NONE) {
        throw ContextError("this model does not pool, so it makes no embeddings");
    }
    if (pooling_ == LLAMA_POOLING_TYPE_RANK) {
        throw ContextError("this model ranks texts, which is not supported");
    }
    memory_ = llama_get_memory(context_.get());
    kind_ = memory_ ? kind_ : MemoryKind::none;
    // A causal mask, and a pooling that asks for the last token only.
    splits_ = memory_ && llama_get_causal_attn(context_.get()) && pooling_ == LLAMA_POOLING_TYPE_LAST;
    params_.n_batch = std::min(params_.n_batch, llama_n_ubatch(context_.get()));
    texts_.resize(params.n_seq_max);
    model_->apply_adapters(context_.get());
}

const Embedder::Text & Embedder::at(int32_t seq) const {
    if (seq < 0 || seq >= n_seq_max()) {
        throw UsageError("there is no sequence " + std::to_string(seq));
    }
    return texts_[static_cast<std::size_t>(seq)];
}

Embedder::Text & Embedder::at(int32_t seq) { return const_cast<Text &>(static_cast<const Embedder &>(*this).at(seq)); }

int32_t Embedder::n_ctx() const noexcept { return memory_ ? static_cast<int32_t>(llama_n_ctx(context_.get())) : 0; }

int32_t Embedder::n_cells_used() const noexcept {
    int32_t used = 0;
    for (const Text & text : texts_) {
        used += memory_ ? text.n_committed : 0;
    }
    return used;
}

int32_t Embedder::n_text_max() const noexcept {
    const int32_t fits = splits_ ? n_ctx() : memory_ ? std::min(n_ctx(), n_batch()) : n_batch();
    // Beyond what a model was trained for there may be no position to look up: ggml would end the process.
    return std::min(fits, llama_model_n_ctx_train(model_->handle()));
}

void Embedder::open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<const CancelFlag> flag) {
    const Entry entry(busy_);
    Text & text = at(seq);
    if (text.open) {
        throw UsageError("sequence " + std::to_string(seq) + " is open already");
    }
    if (tokens.empty() || tokens.size() > static_cast<std::size_t>(n_text_max())) {
        throw UsageError("a text has 1 to " + std::to_string(n_text_max()) + " tokens, not " +
                         std::to_string(tokens.size()));
    }
    check_tokens(tokens, model_->vocab());
    text = Text{std::move(tokens), 0, true, std::move(flag)};
}

void Embedder::close(int32_t seq) {
    const Entry entry(busy_);
    forget(seq, 0);
    at(seq) = Text{};
}

void Embedder::rest() {
    const Entry entry(busy_);
    context_.rest();
}

// Keep the cells of the first `n_kept` tokens of `seq`, or none if that cannot be had.
void Embedder::forget(int32_t seq, int32_t n_kept) {
    if (memory_ && (n_kept == 0 || !calls::remove_cells(memory_, seq, n_kept, -1))) {
        n_kept = 0;
        // Whole sequences can always be removed.
        calls::remove_cells(memory_, seq, -1, -1);
    }
    at(seq).n_committed = n_kept;
}

void Embedder::validate(const std::vector<StepItem> & items) const {
    check_items(items, n_batch(), [this](int32_t seq) {
        const Text & text = at(seq);
        return Pending{text.open, static_cast<int64_t>(text.tokens.size()) - text.n_committed, !splits_};
    });
}

void Embedder::fill_batch(const std::vector<StepItem> & items) {
    batch_.clear();
    for (const StepItem & item : items) {
        const Text & text = at(item.seq);
        for (int32_t pos = text.n_committed; pos < text.n_committed + item.n_tokens; ++pos) {
            // Pooling wants every token to be an output.
            batch_.add(text.tokens[static_cast<std::size_t>(pos)], pos, item.seq, true);
        }
    }
}

AbortGate::Ticket Embedder::arm(const std::vector<StepItem> & items, StepCost cost) {
    std::vector<AbortGate::Member> members;
    for (const StepItem & item : params_.abortable ? items : std::vector<StepItem>{}) {
        members.push_back({at(item.seq).flag.get(), item.n_tokens});
    }
    return gate_.arm(cost, std::move(members), !keeps_truth(), polls_per_graph_);
}

// After a step that did not return ok: nothing of it counts. Without memory nothing was left behind; a recurrent state
// may be half written, and begins again from nothing.
void Embedder::roll_back(const std::vector<StepItem> & items) {
    for (const StepItem & item : items) {
        forget(item.seq, keeps_truth() ? at(item.seq).n_committed : 0);
    }
}

// One pass from llama.cpp's buffer, which the next step clears, into a vector that is the reader's to keep.
void Embedder::read_embedding(EmbedRow & row) const {
    const float * pooled = llama_get_embeddings_seq(context_.get(), row.seq);
    const int32_t size = n_embd();
    double sum = 0.0;
    for (int32_t i = 0; pooled && i < size; ++i) {
        sum += static_cast<double>(pooled[i]) * pooled[i];
    }
    row.faulty = !std::isfinite(sum) || sum <= 0.0;
    if (!row.faulty) {
        const auto scale = static_cast<float>(1.0 / std::sqrt(sum));
        row.embedding.resize(static_cast<std::size_t>(size));
        std::transform(pooled, pooled + size, row.embedding.begin(), [scale](float value) { return value * scale; });
    }
}

void Embedder::commit(const std::vector<StepItem> & items, EmbedResult & result) {
    for (const StepItem & item : items) {
        Text & text = at(item.seq);
        text.n_committed += item.n_tokens;
        EmbedRow row{item.seq, item.n_tokens, false, {}};
        // A request that is cancelled by now gets nothing computed for it any more.
        if (text.n_committed == static_cast<int32_t>(text.tokens.size()) && !text.flag->raised()) {
            read_embedding(row);
        }
        result.rows.push_back(std::move(row));
    }
}

EmbedResult Embedder::step(const std::vector<StepItem> & items, StepCost cost) {
    const Entry entry(busy_);
    validate(items);
    fill_batch(items);
    EmbedResult result;
    context_.before_step();
    result.n_threads = context_.n_threads();
    const int64_t begin = now_us();
    const AbortGate::Ticket ticket = arm(items, cost);
    const auto compute = !memory_ || !llama_model_has_decoder(model_->handle()) ? calls::encode : calls::decode;
    const int32_t rc = gate_.run(compute, context_.get(), batch_.view());
    llama_synchronize(context_.get());
    result.decode_us = now_us() - begin;
    result.status = status_of(rc);
    result.polls = gate_.polls();
    result.spared = gate_.spared() && result.status == StepStatus::ok;
    if (result.status == StepStatus::ok) {
        polls_per_graph_ = result.polls;
        commit(items, result);
    } else if (result.status != StepStatus::no_room) {
        roll_back(items);
    }
    return result;
}

} // namespace pyllmcancel
