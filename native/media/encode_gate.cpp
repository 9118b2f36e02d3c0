#include "media/encode_gate.hpp"

#include "platform/steady_clock.hpp"

#include <algorithm>

namespace pyllmcancel {
namespace {

// The time between two cuts. On the CPU each costs the start of the compute threads, a tenth of a millisecond.
constexpr int64_t CUT_US = 5'000;
constexpr uint32_t MOST_NODES = 4096;

} // namespace

void Audience::join(std::shared_ptr<const CancelFlag> flag) {
    const std::lock_guard<std::mutex> lock(mutex_);
    flags_.push_back(std::move(flag));
}

void Audience::leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    flags_.clear();
}

bool Audience::has_left() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::all_of(flags_.begin(), flags_.end(), [](const auto & flag) { return flag->raised(); });
}

bool EncodeGate::run(const std::shared_ptr<const Audience> & audience, const std::function<void()> & encode) {
    Turns::Turn turn(*turns_, Turns::Kind::part);
    struct Running { // whatever leaves, nothing of this encoding stays
        EncodeGate & gate;
        ~Running() {
            gate.audience_.reset();
            gate.turn_ = nullptr;
            gate.trap_flag_.reset();
        }
    } const running{*this};
    audience_ = audience;
    turn_ = &turn;
    n_computed_ = n_asked_ = 0;
    part_began_us_ = now_us();
    try {
        check();
        encode();
        n_computed_ = n_asked_;
        return true;
    } catch (const Cut &) {
        return false;
    }
}

void EncodeGate::raise_at(uint32_t node, std::shared_ptr<CancelFlag> flag) {
    trap_node_ = node;
    trap_flag_ = std::move(flag);
}

void EncodeGate::check() {
    if (audience_->has_left()) {
        throw Cut();
    }
    turn_->give_way();
    if (audience_->has_left()) {
        throw Cut();
    }
}

void EncodeGate::end_part() {
    n_computed_ = n_asked_;
    if (trap_flag_ && n_computed_ >= trap_node_) {
        trap_flag_->raise();
        trap_flag_.reset();
    }
    const int64_t took_us = now_us() - part_began_us_;
    if (took_us > 2 * CUT_US) {
        part_nodes_ = std::max(1U, part_nodes_ / 2);
    } else if (2 * took_us < CUT_US) {
        part_nodes_ = std::min(MOST_NODES, part_nodes_ * 2);
    }
    check();
    part_began_us_ = now_us();
}

bool EncodeGate::eval(ggml_tensor * /*node*/, bool ask, void * self) {
    auto & gate = *static_cast<EncodeGate *>(self);
    if (!gate.audience_) {
        return !ask;
    }
    if (!ask) {
        gate.end_part();
        return true;
    }
    ++gate.n_asked_;
    return gate.every_node_ || gate.n_asked_ - gate.n_computed_ >= gate.part_nodes_;
}

} // namespace pyllmcancel
