#include "context.hpp"

#include "assertions.hpp"
#include "errors.hpp"
#include "llama_calls.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

// What llama.cpp's samplers throw over one request's grammar is that request's fault, not its neighbours'.
Sampled sample(Sampler & sampler, const float * logits, const CancelFlag & flag) {
    try {
        const AssertionsThrow guard; // as far as it is the sampler's own
        calls::before_sampling();
        return sampler.sample(logits, flag);
    } catch (const std::exception &) {
        Sampled failed;
        failed.fault = LogitFault::grammar;
        return failed;
    }
}

// Logits are wanted for one token a sequence, and for the described tokens of prompts.
uint32_t max_outputs(const ContextParams & params) {
    return std::min(params.n_batch, params.n_seq_max + MOST_DESCRIBED);
}

llama_context_params native_params(const ContextParams & params, AbortGate & gate) {
    llama_context_params native = llama_context_default_params();
    native.n_ctx = params.n_ctx;
    native.n_batch = params.n_batch;
    // One step is one ubatch: what a step that returned ok computed is true, what any other computed is gone.
    native.n_ubatch = params.n_batch;
    native.n_seq_max = params.n_seq_max;
    // The default reserves n_batch rows of the whole vocabulary.
    native.n_outputs_max = max_outputs(params);
    native.n_threads = params.n_threads;
    native.n_threads_batch = params.n_threads_batch;
    native.offload_kqv = params.offload_kqv;
    native.type_k = static_cast<ggml_type>(params.type_k);
    native.type_v = static_cast<ggml_type>(params.type_v);
    native.flash_attn_type = static_cast<llama_flash_attn_type>(params.flash_attention);
    native.no_perf = true;
    // Unified, any sequence may use any cell, and sharing a prefix costs nothing. Divided, no attention walks over the
    // cells of others.
    native.kv_unified = params.kv_unified;
    gate.install(native, params.cut_seconds);
    return native;
}

} // namespace

Context::Context(std::shared_ptr<const Model> model, const ContextParams & params)
    : model_(std::move(model)), params_(params), kind_(model_->memory_kind()),
      n_swa_(llama_model_n_swa(model_->handle())) {
    if (kind_ == MemoryKind::none) {
        throw ContextError("this model does not generate token by token (it is a diffusion or an encoder model)");
    }
    if (params.n_seq_max < 1 || params.n_seq_max > llama_max_parallel_sequences()) {
        throw ContextError("n_seq_max must lie between 1 and " + std::to_string(llama_max_parallel_sequences()));
    }
    if (params.n_batch < params.n_seq_max) {
        throw ContextError("n_batch must be at least n_seq_max, or a step could not advance every sequence");
    }
    params_.kv_unified = params.kv_unified || !model_->can_divide_cells();
    const std::string what = "a context of " + std::to_string(params.n_ctx) + " cells";
    context_.make(model_->handle(), native_params(params_, gate_), params_.adapt_threads, what.c_str());
    if (!llama_get_memory(context_.get())) {
        throw ContextError("this model keeps no memory of past tokens, so it cannot generate");
    }
    params_.n_batch = std::min(params_.n_batch, llama_n_batch(context_.get()));
    if (params_.n_batch < params_.n_seq_max) {
        throw ContextError("a context of " + std::to_string(params_.n_ctx) + " cells is too small for " +
                           std::to_string(params_.n_seq_max) + " sequences");
    }
    if (params.row_padding < 0) {
        params_.row_padding = model_->multiplies_rows_in_fours() ? 1 : 0;
    }
    pads_logits_ = model_->makes_logits_in_fours();
    sequences_.resize(params.n_seq_max);
    shared_cells_.resize(params.n_seq_max);
    model_->apply_adapters(context_.get());
}

const Context::Sequence & Context::at(int32_t seq) const {
    if (seq < 0 || seq >= n_seq_max()) {
        throw UsageError("there is no sequence " + std::to_string(seq));
    }
    return sequences_[static_cast<std::size_t>(seq)];
}

Context::Sequence & Context::at(int32_t seq) {
    return const_cast<Sequence &>(static_cast<const Context &>(*this).at(seq));
}

Context::Sequence & Context::idle(int32_t seq) {
    if (at(seq).open) {
        throw UsageError("sequence " + std::to_string(seq) + " is open");
    }
    return at(seq);
}

bool Context::keeps_truth() const noexcept { return kind_ == MemoryKind::attention || params_.trust_any_memory; }

int32_t Context::n_ctx() const noexcept { return static_cast<int32_t>(llama_n_ctx_seq(context_.get())); }

int32_t Context::n_cells() const noexcept { return static_cast<int32_t>(llama_n_ctx(context_.get())); }

int32_t Context::n_cells_of(const std::vector<int32_t> & seqs) const {
    std::vector<int32_t> lengths;
    for (const Sequence & sequence : sequences_) {
        lengths.push_back(sequence.n_committed);
    }
    for (const int32_t seq : seqs) {
        (void) at(seq);
    }
    return shared_cells_.count(seqs, lengths);
}

int32_t Context::n_cells_used() const {
    std::vector<int32_t> all;
    for (int32_t seq = 0; seq < n_seq_max(); ++seq) {
        if (at(seq).n_committed > 0) {
            all.push_back(seq);
        }
    }
    return n_cells_of(all);
}

uint64_t Context::checkpoint_bytes() const noexcept {
    uint64_t bytes = 0;
    for (const Sequence & sequence : sequences_) {
        bytes += sequence.checkpoints.n_bytes();
    }
    return bytes;
}

// Whether a sliding window still holds all that position `n_tokens` looks back at.
bool Context::window_covers(int32_t seq, int32_t n_tokens) const {
    return n_swa_ <= 0 ||
           llama_memory_seq_pos_min(llama_get_memory(context_.get()), seq) <= std::max(0, n_tokens - n_swa_);
}

// From how many of the first `n_tokens` committed tokens one can go on.
int32_t Context::reusable(int32_t seq, int32_t n_tokens) const {
    const Sequence & sequence = at(seq);
    if (n_tokens <= 0) {
        return 0;
    }
    // A recurrent state is that of its last token, and cannot be rolled back.
    const bool directly = keeps_truth() ? window_covers(seq, n_tokens) : n_tokens == sequence.n_committed;
    return directly ? n_tokens : sequence.checkpoints.latest(n_tokens);
}

int32_t Context::common_prefix(int32_t seq, const std::vector<llama_token> & tokens) const {
    const Sequence & sequence = at(seq);
    const auto n_known = static_cast<std::size_t>(sequence.n_committed);
    return reusable(seq, pyllmcancel::common_prefix(sequence.tokens.data(), n_known, tokens));
}

// Make `seq` hold exactly its first `n_tokens` tokens, or nothing if that cannot be had. `state_is_true` is false after
// a step that did not return ok: a recurrent state is then unknown, also at the committed length.
void Context::rewind(int32_t seq, int32_t n_tokens, bool state_is_true) {
    Sequence & sequence = at(seq);
    llama_memory_t memory = llama_get_memory(context_.get());
    const bool directly =
        keeps_truth() ? window_covers(seq, n_tokens) : state_is_true && n_tokens == sequence.n_committed;
    const bool rewound = n_tokens > 0 && (directly || sequence.checkpoints.restore(context_.get(), seq, n_tokens)) &&
                         (calls::remove_cells(memory, seq, n_tokens, -1) || params_.trust_any_memory);
    if (!rewound) {
        // Whole sequences can always be removed.
        calls::remove_cells(memory, seq, -1, -1);
        n_tokens = 0;
    }
    sequence.n_committed = n_tokens;
    shared_cells_.truncate(seq, n_tokens);
    sequence.checkpoints.forget_after(n_tokens);
}

int32_t Context::open(int32_t seq, std::vector<llama_token> tokens, std::shared_ptr<Sampler> sampler,
                      std::shared_ptr<const CancelFlag> flag, OpenOptions options) {
    const Entry entry(busy_);
    Sequence & sequence = at(seq);
    if (sequence.open) {
        throw UsageError("sequence " + std::to_string(seq) + " is open already");
    }
    if (tokens.empty()) {
        throw UsageError("a sequence needs at least one token");
    }
    check_tokens(tokens, model_->vocab());
    rewind(seq, options.reuse && options.n_described <= 0 ? common_prefix(seq, tokens) : 0, true);
    sequence.n_described = std::min(options.n_described, static_cast<int32_t>(tokens.size()));
    sequence.tokens = std::move(tokens);
    sequence.sampler = std::move(sampler);
    sequence.flag = std::move(flag);
    sequence.logits = nullptr;
    sequence.open = true;
    return sequence.n_committed;
}

void Context::close(int32_t seq, bool keep) {
    const Entry entry(busy_);
    Sequence & sequence = at(seq);
    if (!keep) {
        rewind(seq, 0, true);
    }
    sequence.tokens.resize(static_cast<std::size_t>(sequence.n_committed));
    sequence.sampler.reset();
    sequence.flag.reset();
    sequence.logits = nullptr;
    sequence.open = false;
}

void Context::drop_cells(int32_t seq) {
    const Entry entry(busy_);
    rewind(seq, 0, true);
    if (!at(seq).open) {
        at(seq).tokens.clear();
    }
}

void Context::rest() {
    const Entry entry(busy_);
    context_.rest();
}

// Between divided cells llama.cpp copies whole streams, and only later.
bool Context::copy_cells(int32_t from, int32_t to, std::size_t max_bytes) {
    const auto copy = SwappedPrefix::copy(context_.get(), from, {}, max_bytes);
    return copy && copy->restore(context_.get(), to);
}

bool Context::share_prefix(int32_t from, int32_t to, int32_t n_tokens, std::size_t max_bytes) {
    const Entry entry(busy_);
    const Sequence & source = at(from);
    Sequence & target = at(to);
    if (target.open || from == to || n_tokens < 1 || n_tokens > source.n_committed) {
        throw UsageError("a prefix can be shared only with another, idle sequence, and only as far as it is computed");
    }
    // A checkpoint would not do: it restores the sequence that it is of.
    if (!keeps_truth() || !window_covers(from, n_tokens) || (!params_.kv_unified && !can_swap())) {
        return false;
    }
    rewind(to, 0, true);
    if (params_.kv_unified) {
        llama_memory_seq_cp(llama_get_memory(context_.get()), from, to, 0, n_tokens);
        shared_cells_.share(from, to, n_tokens);
    } else if (!copy_cells(from, to, max_bytes) ||
               !calls::remove_cells(llama_get_memory(context_.get()), to, n_tokens, -1)) {
        return false;
    }
    target.tokens.assign(source.tokens.begin(), source.tokens.begin() + n_tokens);
    target.n_committed = n_tokens;
    return true;
}

std::size_t Context::swap_bytes(int32_t seq) {
    const Entry entry(busy_);
    return at(seq).n_committed > 0 ? SwappedPrefix::size_of(context_.get(), seq) : 0;
}

std::shared_ptr<const SwappedPrefix> Context::copy_out(int32_t seq, std::size_t max_bytes) {
    const Entry entry(busy_);
    const Sequence & sequence = idle(seq);
    if (!can_swap() || sequence.n_committed == 0) {
        return nullptr;
    }
    return SwappedPrefix::copy(context_.get(), seq, sequence.tokens, max_bytes);
}

std::shared_ptr<const SwappedPrefix> Context::ghost(int32_t seq) {
    const Entry entry(busy_);
    return SwappedPrefix::ghost(idle(seq).tokens);
}

bool Context::swap_in(int32_t seq, const SwappedPrefix & prefix) {
    const Entry entry(busy_);
    if (prefix.n_bytes() == 0) {
        throw UsageError("a ghost has no cells to give back");
    }
    Sequence & sequence = idle(seq);
    rewind(seq, 0, true);
    sequence.tokens = prefix.tokens(); // while a lack of memory harms nobody
    if (!prefix.restore(context_.get(), seq)) {
        sequence.tokens.clear();
        return false;
    }
    sequence.n_committed = prefix.n_tokens();
    return true;
}

void Context::validate(const std::vector<StepItem> & items) const {
    check_items(items, n_batch(), [this](int32_t seq) {
        const Sequence & sequence = at(seq);
        return Pending{sequence.open, sequence.n_known() - sequence.n_committed, false};
    });
    // llama.cpp would end the process over too many rows of logits.
    if (n_outputs(items) > max_outputs(params_)) {
        throw UsageError("a step describes at most " + std::to_string(MOST_DESCRIBED) + " tokens of prompts");
    }
}

// Rows of logits that a step computes at most.
std::size_t Context::n_outputs(const std::vector<StepItem> & items) const {
    std::size_t count = items.size();
    for (const StepItem & item : items) {
        const Sequence & sequence = at(item.seq);
        count +=
            static_cast<std::size_t>(std::clamp(sequence.n_described - sequence.n_committed, 0, item.n_tokens - 1));
    }
    return count;
}

std::vector<PaddingToken> Context::padding(const std::vector<StepItem> & items) const {
    if (params_.row_padding == 0 || kind_ != MemoryKind::attention || n_swa_ > 0) {
        return {};
    }
    std::vector<int32_t> n_committed;
    for (const Sequence & sequence : sequences_) {
        n_committed.push_back(sequence.n_committed);
    }
    const int32_t n_rows = n_tokens_of(items);
    std::vector<PaddingToken> found =
        padding_of(items, {n_committed, n_ctx(), n_cells() - n_cells_used() - n_rows, params_.kv_unified});
    return n_rows + static_cast<int32_t>(found.size()) <= n_batch() ? found : std::vector<PaddingToken>{};
}

// Returns, for each item, the batch row of its first token.
std::vector<int32_t> Context::fill_batch(const std::vector<StepItem> & items,
                                         const std::vector<PaddingToken> & padding) {
    batch_.clear();
    std::vector<int32_t> rows;
    const bool decodes = n_tokens_of(items) == static_cast<int32_t>(items.size());
    auto next = padding.begin();
    const auto add_padding = [&] {
        batch_.add(0, next->pos, next->seq, decodes && pads_logits_);
        ++next;
    };
    for (const StepItem & item : items) {
        // Of divided cells llama.cpp computes those together whose seq_ids follow each other in the batch.
        while (!params_.kv_unified && next != padding.end() && next->seq < item.seq) {
            add_padding();
        }
        const Sequence & sequence = at(item.seq);
        const int32_t end = sequence.n_committed + item.n_tokens;
        rows.push_back(batch_.size());
        for (int32_t pos = sequence.n_committed; pos < end; ++pos) {
            const bool output = pos + 1 == sequence.n_known() || pos + 1 < sequence.n_described;
            batch_.add(sequence.tokens[static_cast<std::size_t>(pos)], pos, item.seq, output);
        }
    }
    while (next != padding.end()) {
        add_padding();
    }
    return rows;
}

// Whatever became of the step, nothing of its padding stays.
void Context::remove(const std::vector<PaddingToken> & padding) {
    for (const PaddingToken & token : padding) {
        calls::remove_cells(llama_get_memory(context_.get()), token.seq, token.pos, -1);
    }
}

AbortGate::Ticket Context::arm(const std::vector<StepItem> & items, StepCost cost) {
    std::vector<AbortGate::Member> members;
    for (const StepItem & item : params_.abortable ? items : std::vector<StepItem>{}) {
        members.push_back({at(item.seq).flag.get(), item.n_tokens});
    }
    // Divided cells may take several graphs a step, and how far it has come is not to be told from the nodes of one.
    return gate_.arm(cost, std::move(members), !keeps_truth() || !params_.kv_unified, polls_per_graph_);
}

// After a step that did not return ok: nothing of it counts. llama.cpp has tried the same, and has ignored whether it
// succeeded.
void Context::roll_back(const std::vector<StepItem> & items) {
    for (const StepItem & item : items) {
        const Sequence & sequence = at(item.seq);
        const int32_t n_committed = sequence.n_committed;
        rewind(item.seq, keeps_truth() ? n_committed : sequence.checkpoints.latest(n_committed), false);
    }
}

// Before a chunk of a prompt: what an abort, or a later change of the prompt, can go back to.
void Context::save_checkpoints(const std::vector<StepItem> & items) {
    const bool wanted = params_.checkpoint_interval > 0 && (kind_ != MemoryKind::attention || n_swa_ > 0);
    for (const StepItem & item : items) {
        Sequence & sequence = at(item.seq);
        const int32_t n_committed = sequence.n_committed;
        if (!wanted || item.n_tokens < 2 ||
            n_committed - sequence.checkpoints.latest(n_committed) < params_.checkpoint_interval) {
            continue;
        }
        const int64_t begin = now_us();
        std::vector<CheckpointOwner> others;
        for (Sequence & other : sequences_) {
            if (&other != &sequence) {
                others.push_back({&other.checkpoints, other.open});
            }
        }
        const std::size_t size = Checkpoints::size_of(context_.get(), item.seq);
        const std::size_t room = make_room(size, params_.checkpoint_bytes, others);
        sequence.checkpoints.save(context_.get(), item.seq, n_committed, params_.n_checkpoints, room);
        checkpoint_us_ += now_us() - begin;
    }
}

// The logits at a position are about the token at the next one.
void Context::describe(const Sequence & sequence, int32_t n_tokens, int32_t first_row, StepRow & row) {
    const int32_t end = std::min(sequence.n_committed + n_tokens, sequence.n_described - 1);
    for (int32_t pos = sequence.n_committed; pos < end; ++pos) {
        const float * logits = llama_get_logits_ith(context_.get(), first_row + pos - sequence.n_committed);
        const llama_token next = sequence.tokens[static_cast<std::size_t>(pos) + 1];
        row.described.push_back(sequence.sampler->describe(logits, next));
        if (row.described.back().fault != LogitFault::none) {
            row.next.fault = row.described.back().fault;
            return;
        }
    }
}

void Context::commit(const std::vector<StepItem> & items, const std::vector<int32_t> & first_rows,
                     StepResult & result) {
    for (std::size_t i = 0; i < items.size(); ++i) {
        Sequence & sequence = at(items[i].seq);
        StepRow row{items[i].seq, items[i].n_tokens, false, {}, {}};
        if (!sequence.flag->raised()) {
            describe(sequence, items[i].n_tokens, first_rows[i], row);
        }
        sequence.n_committed += items[i].n_tokens;
        if (sequence.n_committed == sequence.n_known() && row.next.fault == LogitFault::none) {
            sequence.logits = llama_get_logits_ith(context_.get(), first_rows[i] + items[i].n_tokens - 1);
            row.sampled = true;
            // A request that is cancelled by now gets nothing computed for it any more.
            if (!sequence.flag->raised()) {
                row.next = sample(*sequence.sampler, sequence.logits, *sequence.flag);
            }
            if (row.next.token >= 0) {
                sequence.tokens.push_back(row.next.token);
            }
        }
        result.rows.push_back(std::move(row));
    }
}

StepResult Context::step(const std::vector<StepItem> & items, StepCost cost) {
    const Entry entry(busy_);
    validate(items);
    for (Sequence & sequence : sequences_) {
        sequence.logits = nullptr;
    }
    const std::vector<PaddingToken> padded = padding(items);
    const std::vector<int32_t> first_rows = fill_batch(items, padded);
    StepResult result;
    save_checkpoints(items);
    context_.before_step();
    result.n_threads = context_.n_threads();
    const int64_t begin = now_us();
    const AbortGate::Ticket ticket = arm(items, cost);
    const int32_t rc = gate_.run(calls::decode, context_.get(), batch_.view());
    llama_synchronize(context_.get());
    result.decode_us = now_us() - begin;
    result.status = status_of(rc);
    remove(padded);
    result.polls = gate_.polls();
    result.spared = gate_.spared() && result.status == StepStatus::ok;
    if (result.status == StepStatus::ok) {
        polls_per_graph_ = result.polls;
        n_padding_ += static_cast<int64_t>(padded.size());
        commit(items, first_rows, result);
        result.sample_us = now_us() - begin - result.decode_us;
    } else if (result.status != StepStatus::no_room) {
        roll_back(items);
    }
    return result;
}

} // namespace pyllmcancel
