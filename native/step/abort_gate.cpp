#include "step/abort_gate.hpp"

#include "devices/cpu_backend.hpp"

#include "ggml-backend.h"
// llama.cpp's internal header: its API has no access to a context's scheduler.
#include "llama-context.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace pyllmcancel {
namespace {

// The nodes of a part in the first step, whose graph is not known yet: about a layer.
constexpr uint32_t FIRST_PART = 32;

constexpr uint32_t ENDLESS = std::numeric_limits<uint32_t>::max();

// The end of a layer. No back end fuses kernels across it, so a cut there changes no bits.
bool ends_layer(const ggml_tensor & node) noexcept { return std::string_view(node.name).substr(0, 5) == "l_out"; }

} // namespace

bool worth_aborting(const StepCost & cost, int32_t n_tokens, int32_t n_surviving_tokens, double done) noexcept {
    return n_surviving_tokens == 0 || (1.0 - done) * cost.of(n_tokens) > cost.of(n_surviving_tokens);
}

void AbortGate::install(llama_context_params & params, double cut_seconds, bool offloaded) {
    params.abort_callback = poll;
    params.abort_callback_data = this;
    const double automatic = offloaded ? CUT_SECONDS : std::numeric_limits<double>::infinity();
    cut_seconds_ = cut_seconds < 0.0 ? automatic : cut_seconds;
    // llama.cpp gives the callback to its scheduler whenever it makes a new graph.
    if (!std::isinf(cut_seconds_)) {
        params.cb_eval = eval;
        params.cb_eval_user_data = this;
    }
}

int32_t AbortGate::run(int32_t (*compute)(llama_context *, llama_batch), llama_context * context,
                       const llama_batch & batch) {
    constexpr int32_t aborted = 2;
    // A token takes 5 % longer on a GPU with the callback in place, cuts or not.
    ggml_backend_sched_set_eval_callback(context->get_sched(), divides() ? eval : nullptr, this);
    const AskInNodes asking(poll_inside, this);
    try {
        const int32_t rc = compute(context, batch);
        if (rc == 0) {
            end_part();
        }
        return rc;
    } catch (const Cut &) {
        return aborted;
    }
}

AbortGate::Ticket AbortGate::arm(StepCost cost, std::vector<Member> members, bool only_unanimous, GraphNodes nodes) {
    members_ = std::move(members);
    cost_ = cost;
    only_unanimous_ = only_unanimous;
    n_computed_ = 0;
    n_asked_ = 0;
    n_tokens_ = 0;
    for (const Member & member : members_) {
        n_tokens_ += member.n_tokens;
    }
    part_nodes_ = nodes_of_part(nodes.divided);
    nodes_expected_ = divides() ? nodes.divided : nodes.whole;
    spared_ = false;
    return Ticket(*this);
}

void AbortGate::disarm() noexcept {
    fired_ = false;
    members_.clear();
    way_.reset();
    if (trap_later_ > 0) {
        --trap_later_;
    } else {
        trap_flag_.reset();
    }
}

void AbortGate::raise_at(uint32_t node, std::shared_ptr<CancelFlag> flag, uint32_t n_later) {
    trap_node_ = node;
    trap_later_ = n_later;
    trap_flag_ = std::move(flag);
}

void AbortGate::spring_trap() noexcept {
    if (trap_flag_ && trap_later_ == 0 && n_computed_ >= trap_node_) {
        trap_flag_->raise();
        trap_flag_.reset();
    }
}

bool AbortGate::decide() noexcept {
    if (way_ && way_->raised()) {
        return true;
    }
    int32_t n_cancelled = 0;
    int32_t n_surviving_tokens = 0;
    for (const Member & member : members_) {
        if (member.flag->raised()) {
            ++n_cancelled;
        } else {
            n_surviving_tokens += member.n_tokens;
        }
    }
    if (n_cancelled == 0) {
        return false;
    }
    // How long a step is is known after the first one has run to its end: until then only a unanimous abort is safe.
    const bool may_weigh = !only_unanimous_ && nodes_expected_ > 0;
    const double done = may_weigh ? static_cast<double>(n_computed_) / nodes_expected_ : 0.0;
    const bool abort =
        n_surviving_tokens == 0 || (may_weigh && worth_aborting(cost_, n_tokens_, n_surviving_tokens, done));
    spared_ = !abort;
    return abort;
}

// Once fired, stay fired: a step that is split over several graphs must not start its next one.
void AbortGate::check() noexcept { fired_ = fired_ || decide(); }

bool AbortGate::poll(void * self) noexcept {
    auto & gate = *static_cast<AbortGate *>(self);
    if (gate.n_asked_ == 0) {
        ++gate.n_computed_;
    }
    gate.spring_trap();
    gate.check();
    return gate.fired_;
}

bool AbortGate::poll_inside(void * self) noexcept {
    auto & gate = *static_cast<AbortGate *>(self);
    gate.check();
    return gate.fired_;
}

bool AbortGate::eval(ggml_tensor * node, bool ask, void * self) {
    auto & gate = *static_cast<AbortGate *>(self);
    if (!gate.divides()) {
        return false; // llama.cpp puts its callback back whenever it makes a new graph
    }
    if (ask) {
        // Nothing of the next part has been launched yet.
        if (gate.n_asked_ == gate.n_computed_) {
            gate.check();
        }
        ++gate.n_asked_;
    } else {
        gate.end_part();
        gate.spring_trap();
        gate.check();
    }
    if (gate.fired_) {
        throw Cut();
    }
    return !ask || gate.cut_after(*node);
}

bool AbortGate::divides() const noexcept { return !std::isinf(cut_seconds_) && part_nodes_ != ENDLESS; }

uint32_t AbortGate::nodes_of_part(uint32_t nodes_expected) const noexcept {
    if (cut_seconds_ <= 0.0) {
        return 0;
    }
    const double n_parts = std::ceil(cost_.of(n_tokens_) / cut_seconds_);
    // A token for each member: too little to stop for.
    if (n_parts <= 1.0 || n_tokens_ <= static_cast<int32_t>(members_.size())) {
        return ENDLESS;
    }
    return nodes_expected == 0 ? FIRST_PART : std::max(1U, static_cast<uint32_t>(nodes_expected / n_parts));
}

// At the end of a layer if one comes before the part is twice as long as it should be.
bool AbortGate::cut_after(const ggml_tensor & node) const noexcept {
    const uint64_t n_nodes = n_asked_ - n_computed_;
    return n_nodes >= part_nodes_ && (ends_layer(node) || n_nodes >= 2 * uint64_t{part_nodes_});
}

void AbortGate::end_part() noexcept { n_computed_ = std::max(n_computed_, n_asked_); }

} // namespace pyllmcancel
