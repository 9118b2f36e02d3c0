#include "step/embedder.hpp"

#include "llama-context.h"
#include "model/tokens.hpp"
#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"

#include <algorithm>
#include <cmath>

namespace pyllmcancel {
namespace {

EmbedderParams checked(const Model & model, const EmbedderParams & params) {
    if (llama_model_has_encoder(model.handle()) && llama_model_has_decoder(model.handle())) {
        throw ContextError("this model translates one text into another, so it has no embedding to pool");
    }
    check_n_seq_max(params);
    return params;
}

} // namespace

llama_context_params llama_params(const EmbedderParams & params) {
    llama_context_params native = native_params(params);
    native.embeddings = true;
    native.pooling_type = static_cast<enum llama_pooling_type>(params.pooling);
    // Any text may use any cell.
    native.kv_unified = true;
    return native;
}

Embedder::Embedder(std::shared_ptr<const Model> model, const EmbedderParams & params)
    : model_(std::move(model)), params_(checked(*model_, params)),
      runner_(*model_, llama_params(params_), params_, "a context for embeddings"),
      memory_(llama_get_memory(runner_.context())), kind_(memory_ ? model_->memory_kind() : MemoryKind::none),
      pooling_(llama_pooling_type(runner_.context())),
      // A causal mask, and a pooling that asks for the last token only.
      splits_(memory_ && llama_get_causal_attn(runner_.context()) &&
              (pooling_ == LLAMA_POOLING_TYPE_LAST || pooling_ == LLAMA_POOLING_TYPE_RANK)),
      texts_(params.n_seq_max) {
    // llama.cpp would read scores that are not there.
    if (pooling_ == LLAMA_POOLING_TYPE_RANK && model_->n_scores() == 0) {
        throw ContextError("this model has no classification head, so it cannot rank texts");
    }
    if (pooling_ == LLAMA_POOLING_TYPE_NONE && params.pooling < 0) {
        throw ContextError("this model does not pool, so it makes no embeddings");
    }
    params_.n_batch = std::min(params_.n_batch, llama_n_ubatch(runner_.context()));
}

int32_t Embedder::n_embd() const {
    return pooling_ == LLAMA_POOLING_TYPE_RANK ? model_->n_scores() : llama_model_n_embd_out(model_->handle());
}

int32_t Embedder::n_ctx() const noexcept { return memory_ ? static_cast<int32_t>(llama_n_ctx(runner_.context())) : 0; }

int32_t Embedder::n_cells_used() const noexcept {
    int32_t used = 0;
    for (const Sequence & text : texts_) {
        used += memory_ ? text.n_committed : 0;
    }
    return used;
}

int32_t Embedder::n_text_max() const noexcept {
    const int32_t fits = splits_ ? n_ctx() : memory_ ? std::min(n_ctx(), n_batch()) : n_batch();
    // Beyond what a model was trained for there may be no position to look up: ggml would end the process.
    return std::min(fits, llama_model_n_ctx_train(model_->handle()));
}

void Embedder::open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<const CancelFlag> flag,
                    AdapterScales adapters) {
    const BusyGuard guard = runner_.enter();
    Sequence & text = texts_.idle(seq);
    if (tokens.empty() || tokens.size() > static_cast<std::size_t>(n_text_max())) {
        throw UsageError("a text has 1 to " + std::to_string(n_text_max()) + " tokens, not " +
                         std::to_string(tokens.size()));
    }
    check_tokens(tokens, model_->vocab());
    model_->adapters().check(adapters);
    text = Sequence{std::move(tokens), 0, true, std::move(flag), std::move(adapters)};
}

void Embedder::close(int32_t seq) {
    const BusyGuard guard = runner_.enter();
    Sequence & text = texts_.at(seq);
    rewind(seq, 0);
    text = Sequence{};
}

EmbedResult Embedder::step(const std::vector<StepItem> & items, StepCost cost) {
    const BusyGuard guard = runner_.enter();
    texts_.check(items, n_batch(), /* whole */ !splits_);
    fill_batch(items);
    const auto compute = !memory_ || !llama_model_has_decoder(model_->handle()) ? calls::encode : calls::decode;
    EmbedResult result{runner_.run(compute, texts_.members(items), cost, !survives_abort(), texts_.adapters_of(items)),
                       {}};
    if (result.status == StepStatus::ok) {
        int32_t place = 0;
        for (const StepItem & item : items) {
            result.rows.push_back(commit(item, place));
            place += item.n_tokens;
        }
    } else if (result.status != StepStatus::no_room) {
        roll_back(items);
    }
    return result;
}

void Embedder::fill_batch(const std::vector<StepItem> & items) {
    Batch & batch = runner_.batch();
    batch.clear();
    for (const StepItem & item : items) {
        const Sequence & text = texts_.at(item.seq);
        for (int32_t pos = text.n_committed; pos < text.n_committed + item.n_tokens; ++pos) {
            // Pooling wants every token to be an output.
            batch.add(text.tokens[static_cast<std::size_t>(pos)], pos, item.seq, true);
        }
    }
}

// Keep the cells of the first `n_tokens` tokens of `seq`, or none if that cannot be had.
void Embedder::rewind(int32_t seq, int32_t n_tokens) {
    if (memory_ && (n_tokens == 0 || !calls::remove_cells(memory_, seq, n_tokens, -1))) {
        n_tokens = 0;
        // Whole sequences can always be removed.
        calls::remove_cells(memory_, seq, -1, -1);
    }
    texts_.at(seq).n_committed = n_tokens;
}

// After a step that did not return ok: nothing of it counts. Without memory nothing was left behind; a recurrent state
// may be half written, and begins again from nothing.
void Embedder::roll_back(const std::vector<StepItem> & items) {
    for (const StepItem & item : items) {
        rewind(item.seq, survives_abort() ? texts_.at(item.seq).n_committed : 0);
    }
}

// A request that is cancelled by now gets nothing computed for it any more. `place` is that of the item's first token in
// the batch.
EmbedRow Embedder::commit(const StepItem & item, int32_t place) {
    Sequence & text = texts_.at(item.seq);
    text.n_committed += item.n_tokens;
    EmbedRow row{item.seq, item.n_tokens, false, {}};
    if (text.n_pending() == 0 && !text.flag->raised()) {
        read_embedding(row, place);
    }
    return row;
}

// Copies llama.cpp's buffer, which the next step clears, into a vector that is the reader's to keep.
void Embedder::read_embedding(EmbedRow & row, int32_t place) const {
    llama_context * context = runner_.context();
    const bool of_tokens = pooling_ == LLAMA_POOLING_TYPE_NONE;
    for (int32_t i = 0; i < (of_tokens ? row.n_tokens : 1); ++i) {
        // As StepRunner::logits(): these do not wait again for each row.
        const float * values =
            of_tokens ? context->get_embeddings_ith(place + i) : context->get_embeddings_seq(row.seq);
        if (values) {
            row.embedding.insert(row.embedding.end(), values, values + n_embd());
        }
    }
    double sum = 0.0;
    for (const float value : row.embedding) {
        sum += static_cast<double>(value) * value;
    }
    row.faulty = row.embedding.empty() || !std::isfinite(sum) || (sum <= 0.0 && pooling_ != LLAMA_POOLING_TYPE_RANK);
    if (row.faulty) {
        row.embedding.clear();
    } else if (!of_tokens && pooling_ != LLAMA_POOLING_TYPE_RANK) {
        const auto scale = static_cast<float>(1.0 / std::sqrt(sum));
        for (float & value : row.embedding) {
            value *= scale;
        }
    }
}

} // namespace pyllmcancel
