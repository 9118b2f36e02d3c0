#include "step/context.hpp"

#include "llama-context.h"
#include "model/heads.hpp"
#include "model/tokens.hpp"
#include "platform/assertions.hpp"
#include "platform/errors.hpp"
#include "platform/llama_calls.hpp"
#include "platform/steady_clock.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

uint32_t max_outputs(const ContextParams & params) {
    return std::min(params.n_batch, params.n_seq_max + params.n_extra_outputs);
}

ContextParams checked(const Model & model, ContextParams params) {
    if (model.memory_kind() == MemoryKind::none) {
        throw ContextError("this model does not generate token by token (it is a diffusion or an encoder model)");
    }
    check_n_seq_max(params);
    if (params.n_batch < params.n_seq_max) {
        throw ContextError("n_batch must be at least n_seq_max, or a step could not advance every sequence");
    }
    params.kv_unified = params.kv_unified || !model.can_divide_cells();
    if ((params.heads || params.n_states > 0) && heads::count(model.handle()) == 0) {
        throw ContextError("this model has no heads that guess further tokens, or none that can be computed here");
    }
    return params;
}

// An error of llama.cpp's samplers over one request's grammar is that request's fault, not its neighbours'.
Sampled sample(Sampler & sampler, const float * logits) {
    try {
        const AssertionsThrow guard; // as far as it is the sampler's own
        calls::before_sampling();
        return sampler.sample(logits);
    } catch (const std::bad_alloc &) {
        Sampled failed;
        failed.fault = LogitFault::no_memory;
        return failed;
    } catch (const std::exception &) {
        Sampled failed;
        failed.fault = LogitFault::grammar;
        return failed;
    }
}

std::vector<llama_token> text_of(const std::vector<llama_token> & tokens, const MediaSpans & media) {
    std::vector<llama_token> text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (!media.at(static_cast<int32_t>(i))) {
            text.push_back(tokens[i]);
        }
    }
    return text;
}

// While one lives, every row of a step may look at every other of it.
class LooksAhead {
  public:
    LooksAhead(llama_context * context, bool wanted) : context_(wanted ? context : nullptr) { set(false); }
    ~LooksAhead() { set(true); }
    LooksAhead(const LooksAhead &) = delete;
    LooksAhead & operator=(const LooksAhead &) = delete;

  private:
    void set(bool causal) {
        if (context_) {
            llama_set_causal_attn(context_, causal);
        }
    }

    llama_context * context_;
};

} // namespace

llama_context_params llama_params(const ContextParams & params) {
    llama_context_params native = native_params(params);
    // The default reserves n_batch rows of the whole vocabulary.
    native.n_outputs_max = max_outputs(params);
    // Unified, any sequence may use any cell, and sharing a prefix costs nothing. Divided, no attention walks over the
    // cells of others.
    native.kv_unified = params.kv_unified;
    if (params.heads) {
        heads::choose(native);
    }
    return native;
}

Context::Context(std::shared_ptr<const Model> model, const ContextParams & params)
    : model_(std::move(model)), params_(checked(*model_, params)),
      runner_(*model_, llama_params(params_), params_, "a context of " + std::to_string(params.n_ctx) + " cells"),
      sequences_(runner_.context(), *model_, params_) {
    if (!llama_get_memory(runner_.context())) {
        throw ContextError("this model keeps no memory of past tokens, so it cannot generate");
    }
    params_.n_batch = std::min(params_.n_batch, llama_n_batch(runner_.context()));
    if (params_.heads) {
        heads::keep_states_of_outputs(runner_.context());
    } else if (params_.n_states > 0) {
        heads::keep_states(runner_.context());
    }
    if (params_.n_batch < params_.n_seq_max) {
        throw ContextError("a context of " + std::to_string(params_.n_ctx) + " cells is too small for " +
                           std::to_string(params_.n_seq_max) + " sequences");
    }
}

int32_t Context::open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<Sampler> sampler,
                      std::shared_ptr<const CancelFlag> flag, OpenOptions options) {
    const BusyGuard guard = runner_.enter();
    ContextSequence & sequence = sequences_.idle(seq);
    if (tokens.empty()) {
        throw UsageError("a sequence needs at least one token");
    }
    const int32_t n_held = options.n_held;
    if (n_held != 0 && (n_held < 0 || n_held > sequence.n_committed || !sequence.media.empty() ||
                        !options.media.empty() || options.n_described > 0)) {
        throw UsageError("sequence " + std::to_string(seq) + " does not hold " + std::to_string(n_held) +
                         " tokens of text, or its tokens cannot be described");
    }
    MediaSpans media(options.media, tokens);
    if (!media.empty() && options.n_described > 0) {
        throw UsageError("the tokens of a prompt with pictures cannot be described");
    }
    check_tokens(media.empty() ? tokens : text_of(tokens, media), model_->vocab());
    model_->adapters().check(options.adapters);
    const int32_t n_reusable = options.n_described > 0 ? 0 : options.n_reusable;
    const std::size_t n_known = static_cast<std::size_t>(n_held) + tokens.size();
    if (n_held > 0 && sequence.tokens.capacity() < n_known) {
        sequence.tokens.reserve(2 * n_known); // before anything changes, and not at each call
    }
    sequences_.rewind(seq, sequences_.common_prefix(seq, tokens, n_reusable, n_held));
    sequence.n_described = std::min(options.n_described, static_cast<int32_t>(tokens.size()));
    if (n_held > 0) {
        sequence.tokens.resize(static_cast<std::size_t>(n_held));
        sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    } else {
        sequence.tokens = std::move(tokens);
    }
    sequence.media = std::move(media);
    sequence.inputs = std::move(options.media);
    sequence.sampler = std::move(sampler);
    sequence.flag = std::move(flag);
    sequence.adapters = std::move(options.adapters);
    sequence.adapted_from = options.adapted_from;
    sequence.logits = nullptr;
    sequence.open = true;
    return sequence.n_committed;
}

void Context::close(int32_t seq, bool keep) {
    const BusyGuard guard = runner_.enter();
    ContextSequence & sequence = sequences_.at(seq);
    if (!keep) {
        sequences_.clear(seq);
    }
    sequence.tokens.resize(static_cast<std::size_t>(sequence.n_committed));
    sequence.inputs.clear();
    sequence.sampler.reset();
    sequence.flag.reset();
    sequence.logits = nullptr;
    sequence.open = false;
}

void Context::drop_cells(int32_t seq) {
    const BusyGuard guard = runner_.enter();
    ContextSequence & sequence = sequences_.at(seq);
    sequences_.clear(seq);
    if (!sequence.open) {
        sequence.tokens.clear();
    }
}

StepResult Context::step(const std::vector<StepItem> & items, StepCost cost) {
    const BusyGuard guard = runner_.enter();
    return compute(items, cost);
}

StepResult Context::compute(const std::vector<StepItem> & items, StepCost cost) {
    check(items);
    const AdapterScales & adapters = sequences_.adapters_of(items);
    for (ContextSequence & sequence : sequences_) {
        sequence.logits = nullptr;
    }
    const MediaSpan * media = media_of(items.front());
    std::vector<int32_t> first_rows{0};
    if (media) {
        fill_media(items.front(), *media);
    } else {
        first_rows = fill_batch(items);
    }
    const LooksAhead looks_ahead(runner_.context(), media && media->layout->non_causal);
    sequences_.save_checkpoints(items);
    // A recurrent or hybrid memory loses the survivors' state in an abort. Divided cells may take several graphs a step, and
    // the nodes of one do not tell how far the step has come.
    const bool only_unanimous = !sequences_.survives_abort() || !params_.kv_unified;
    StepResult result{
        runner_.run(calls::decode, sequences_.members(items), cost, only_unanimous, adapters), 0, {}, false};
    const int64_t begin = now_us();
    if (result.status == StepStatus::ok) {
        for (std::size_t i = 0; i < items.size(); ++i) {
            result.rows.push_back(commit(items[i], first_rows[i]));
        }
        result.sample_us = now_us() - begin;
    } else if (result.status != StepStatus::no_room) { // for which llama.cpp has changed nothing
        sequences_.roll_back(items);
    }
    return result;
}

void Context::check(const std::vector<StepItem> & items) const {
    sequences_.check(items, n_batch(), /* whole */ false);
    check_media(items);
    check_states(items);
    std::size_t n_outputs = items.size();
    for (const StepItem & item : items) {
        const ContextSequence & sequence = sequences_.at(item.seq);
        const int32_t n_described = std::clamp(sequence.n_described - sequence.n_committed, 0, item.n_tokens - 1);
        n_outputs += static_cast<std::size_t>(n_described + item.n_drafted());
        check_draft(item, sequence);
    }
    // llama.cpp would end the process over too many rows of logits.
    if (n_outputs > max_outputs(params_)) {
        throw UsageError("a step has at most " + std::to_string(params_.n_extra_outputs) +
                         " described and drafted tokens");
    }
}

// The run that an item's tokens are of, or null if they are text.
const MediaSpan * Context::media_of(const StepItem & item) const {
    const ContextSequence & sequence = sequences_.at(item.seq);
    return sequence.media.at(sequence.n_committed);
}

// llama.cpp takes tokens or rows.
void Context::check_media(const std::vector<StepItem> & items) const {
    for (const StepItem & item : items) {
        const ContextSequence & sequence = sequences_.at(item.seq);
        const MediaSpan * span = media_of(item);
        if (sequence.media.uniform(sequence.n_committed, item.n_tokens) < item.n_tokens ||
            (span && (items.size() > 1 || !item.draft.empty()))) {
            throw UsageError("a step computes text, or one picture");
        }
        if (span && span->layout->non_causal && item.n_tokens < span->layout->n_tokens) {
            throw UsageError("a picture whose rows look ahead is computed in one step");
        }
    }
}

// Throws UsageError if the picture is not encoded yet.
void Context::fill_media(const StepItem & item, const MediaSpan & span) {
    const ContextSequence & sequence = sequences_.at(item.seq);
    const auto input = std::find_if(sequence.inputs.begin(), sequence.inputs.end(),
                                    [&](const MediaInput & one) { return one.start == span.start; });
    rows_ = input == sequence.inputs.end() ? nullptr : input->chunk->rows();
    if (!rows_) {
        throw UsageError("a picture of sequence " + std::to_string(item.seq) + " is not encoded");
    }
    const int32_t row = sequence.n_committed - span.start;
    const auto n_embd = static_cast<std::size_t>(llama_model_n_embd_inp(model_->handle()));
    const bool output = sequence.n_committed + item.n_tokens == sequence.n_known();
    runner_.batch().set_rows(rows_->data() + static_cast<std::size_t>(row) * n_embd, item.n_tokens,
                             span.layout->positions(sequence.media.position(span.start), row, item.n_tokens), item.seq,
                             output);
}

void Context::check_draft(const StepItem & item, const ContextSequence & sequence) const {
    if (item.draft.empty()) {
        return;
    }
    if (!can_draft()) {
        throw UsageError("a rejected draft cannot be undone in this model's memory");
    }
    if (sequence.n_known() + item.n_drafted() > n_ctx()) {
        throw UsageError("the draft of sequence " + std::to_string(item.seq) + " is longer than the context");
    }
    check_tokens(item.draft, model_->vocab());
}

// Returns, for each item, the batch row of its first token.
std::vector<int32_t> Context::fill_batch(const std::vector<StepItem> & items) {
    Batch & batch = runner_.batch();
    batch.clear();
    std::vector<int32_t> first_rows;
    for (const StepItem & item : items) {
        const ContextSequence & sequence = sequences_.at(item.seq);
        const int32_t end = sequence.n_committed + item.n_tokens;
        first_rows.push_back(batch.size());
        llama_pos pos = sequence.media.position(sequence.n_committed);
        for (int32_t n = sequence.n_committed; n < end; ++n) {
            const bool output = n + 1 == sequence.n_known() || n + 1 < sequence.n_described;
            batch.add(sequence.tokens[static_cast<std::size_t>(n)], pos++, item.seq, output);
            if (params_.heads) {
                batch.add_state(sequence.states.at(n), heads::width(model_->handle()));
            }
        }
        for (const llama_token token : item.draft) {
            batch.add(token, pos++, item.seq, true);
        }
    }
    return first_rows;
}

// The logits at a position are about the token at the next one.
void Context::describe(const ContextSequence & sequence, int32_t n_tokens, int32_t first_row, StepRow & row) {
    const int32_t end = std::min(sequence.n_committed + n_tokens, sequence.n_described - 1);
    for (int32_t pos = sequence.n_committed; pos < end; ++pos) {
        const float * logits = runner_.logits(first_row + pos - sequence.n_committed);
        const llama_token next = sequence.tokens[static_cast<std::size_t>(pos) + 1];
        row.described.push_back(sequence.sampler->describe(logits, next));
        if (row.described.back().fault != LogitFault::none) {
            row.fault = row.described.back().fault;
            return;
        }
    }
}

// After a step that returned ok: what it computed is valid, and each sequence whose known tokens are all computed gets its
// next one. A request that is cancelled by now gets nothing computed for it any more.
StepRow Context::commit(const StepItem & item, int32_t first_row) {
    ContextSequence & sequence = sequences_.at(item.seq);
    const int32_t n_before = sequence.n_committed;
    StepRow row{item.seq, item.n_tokens, LogitFault::none, {}, {}};
    if (!sequence.flag->raised()) {
        describe(sequence, item.n_tokens, first_row, row);
    }
    sequence.n_committed += item.n_tokens;
    if (sequence.n_pending() == 0 && row.fault == LogitFault::none) {
        choose(item, first_row + item.n_tokens - 1, row);
    }
    if (params_.n_states > 0) {
        keep_states(item, n_before, first_row);
    }
    if (!item.draft.empty()) {
        // If a memory cannot go back, it is emptied, and the sequence is computed again.
        sequences_.rewind(item.seq, sequence.n_committed);
        row.n_tokens = sequence.n_committed - n_before;
    }
    return row;
}

// Samples the row of the last known token, and those of the draft for as long as it says what was sampled.
void Context::choose(const StepItem & item, int32_t last_row, StepRow & row) {
    ContextSequence & sequence = sequences_.at(item.seq);
    for (int32_t i = 0; i <= item.n_drafted(); ++i) {
        sequence.logits = runner_.logits(last_row + i);
        if (sequence.flag->raised()) {
            return;
        }
        Sampled next = sample(*sequence.sampler, sequence.logits);
        row.fault = next.fault;
        if (next.token < 0) {
            return;
        }
        const llama_token token = next.token;
        sequence.tokens.push_back(token);
        row.sampled.push_back(std::move(next));
        if (params_.heads) {
            keep_state_of_guess(sequence, last_row + i);
        }
        const bool as_drafted = i < item.n_drafted() && item.draft[static_cast<std::size_t>(i)] == token;
        if (!as_drafted || llama_vocab_is_eog(model_->vocab(), token)) {
            return;
        }
        ++sequence.n_committed;
    }
}

GraphCounts Context::graph_counts() const {
    llama_context * context = runner_.context();
    const ggml_backend_sched_t scheduler = context->get_sched();
    return {ggml_backend_sched_get_n_splits(scheduler), ggml_backend_sched_get_n_copies(scheduler),
            llama_perf_context(context).n_reused};
}

} // namespace pyllmcancel
