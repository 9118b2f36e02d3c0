#pragma once

#include "devices/turns.hpp"
#include "step/cancel_flag.hpp"

#include "ggml.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace pyllmcancel {

// The requests that wait for one encoding, which is wanted for as long as one of them is not cancelled. Any thread may
// join.
class Audience {
  public:
    void join(std::shared_ptr<const CancelFlag> flag);

    // All of them leave, without a cancel.
    void leave();
    bool has_left() const;

  private:
    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<const CancelFlag>> flags_;
};

// Ends an encoder's graph when nobody wants it any more, and lets steps of the model take their turns beside it.
//
// Of ggml's hooks mtmd passes on the one for looking at intermediate results: with it a graph is divided by cuts, at which
// ggml waits for the device, and asks. Between cuts lie as many nodes as compute in about CUT_US. An end leaves the graph
// by an exception, which run() turns into a return value.
class EncodeGate {
  public:
    // `every_node`: cut after each node (for tests).
    EncodeGate(std::shared_ptr<Turns> turns, bool every_node) : turns_(std::move(turns)), every_node_(every_node) {}

    // Calls `encode` in turns of its own; false if it was ended, or never begun. All on one thread.
    bool run(const std::shared_ptr<const Audience> & audience, const std::function<void()> & encode);

    // ggml_backend_sched_eval_callback; `self` is the gate.
    static bool eval(ggml_tensor * node, bool ask, void * self);

    // For tests: as AbortGate's, of the next encoding.
    void raise_at(uint32_t node, std::shared_ptr<CancelFlag> flag);

    // Nodes known to be computed.
    uint32_t polls() const noexcept { return n_computed_; }

  private:
    struct Cut {};

    void check();
    void end_part();

    std::shared_ptr<Turns> turns_;
    bool every_node_;
    std::shared_ptr<const Audience> audience_; // null while nothing is encoded, as in mtmd's own warm-up
    Turns::Turn * turn_ = nullptr;
    uint32_t n_computed_ = 0;
    uint32_t n_asked_ = 0;
    uint32_t part_nodes_ = 1;
    int64_t part_began_us_ = 0;
    uint32_t trap_node_ = 0;
    std::shared_ptr<CancelFlag> trap_flag_;
};

} // namespace pyllmcancel
