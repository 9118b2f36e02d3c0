#pragma once

#include "step/cancel_flag.hpp"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace pyllmcancel {

// The time for which a step of a prompt may continue after a cancel on a GPU. On an H100, with an 8B model in steps of
// 55 ms, two to four cuts a step take 0 to 3 % of a prompt's time, sixteen 2 to 4 %.
constexpr double CUT_SECONDS = 0.016;

// The cost of a step of n tokens: fixed + per_token * n seconds.
struct StepCost {
    double fixed = 0.0;
    double per_token = 1.0;

    double of(int32_t n_tokens) const noexcept { return n_tokens > 0 ? fixed + per_token * n_tokens : 0.0; }
};

// The abort policy, for a step of `n_tokens`, of which the fraction `done` is computed. Returns whether the rest of the
// step costs more than a new step for its survivors, the sequences that are not cancelled. Always true without survivors.
bool worth_aborting(const StepCost & cost, int32_t n_tokens, int32_t n_surviving_tokens, double done) noexcept;

// Nodes of a graph, counted in a step that ran to its end; 0 is unknown. Without cuts a device counts none of its
// nodes.
struct GraphNodes {
    uint32_t whole = 0;   // of a step without cuts
    uint32_t divided = 0; // of one with cuts
};

// Decides, while llama_decode runs, whether to abort it.
//
// Armed for one step, by a Ticket, and disarmed with it: a flag that is raised later meets a gate that knows no members.
// All callbacks run on the thread that called llama_decode and armed the gate; only the
// flags are shared between threads.
//
// It aborts when the flag of give_way() is raised, and when all members are cancelled; otherwise as worth_aborting() says, unless `only_unanimous`: with recurrent and
// hybrid memories an abort would harm the survivors, and with divided cells the rest of a step cannot be estimated.
//
// ggml calls poll() after every node that the CPU back end computes; our matrix products and attention call
// poll_inside(). No other back end has such hooks. There eval(), ggml's callback for looking at intermediate results,
// divides a graph by cuts: ggml computes the nodes up to a cut, waits for the device, and asks. An abort leaves
// llama_decode by an exception, which run() turns into a return code.
class AbortGate {
  public:
    struct Member {
        const CancelFlag * flag;
        int32_t n_tokens;
    };

    class Ticket {
      public:
        explicit Ticket(AbortGate & gate) noexcept : gate_(gate) {}
        ~Ticket() { gate_.disarm(); }
        Ticket(const Ticket &) = delete;
        Ticket & operator=(const Ticket &) = delete;

      private:
        AbortGate & gate_;
    };

    // Have a context that is made with `params` ask this gate, which must outlive it. `cut_seconds`: about the longest
    // time that a part of a prompt's graph may take; 0 cuts after every node of any graph; infinite: no cuts; negative:
    // CUT_SECONDS for a model that is `offloaded` to a device without an abort callback, else no cuts.
    void install(llama_context_params & params, double cut_seconds, bool offloaded);

    // For one step. `nodes` are those of the last steps that ran to their end. Without members no cancel fires the gate.
    [[nodiscard]] Ticket arm(StepCost cost, std::vector<Member> members, bool only_unanimous, GraphNodes nodes);

    // The next step is aborted once `flag` is raised, even if none of its requests is cancelled: other requests come first.
    void give_way(std::shared_ptr<const CancelFlag> flag) noexcept { way_ = std::move(flag); }

    // Calls `compute` (llama_decode or llama_encode), and returns its code; 2, as for an abort, if a cut ended it.
    int32_t run(int32_t (*compute)(llama_context *, llama_batch), llama_context * context, const llama_batch & batch);

    // For tests: raise `flag` once the given node of the next step, or of one `n_later` steps later, is computed, counted
    // from 1, and never again. It makes every point at which a cancel can arrive reachable, one by one.
    void raise_at(uint32_t node, std::shared_ptr<CancelFlag> flag, uint32_t n_later = 0);

    // ggml_abort_callback; `self` is the gate.
    static bool poll(void * self) noexcept;

    // Like poll(), inside a node.
    static bool poll_inside(void * self) noexcept;

    // ggml_backend_sched_eval_callback; `self` is the gate. With `ask`: whether to cut after `node`. Without: `node` and
    // all before it are computed; always true. Throws what run() catches. A step without cuts is not divided.
    static bool eval(ggml_tensor * node, bool ask, void * self);

    // Returns whether the step that the gate was last armed for has cuts.
    bool divides() const noexcept;

    // Nodes known to be computed.
    uint32_t polls() const noexcept { return n_computed_; }

    // Returns whether the policy chose to let a step go on although one of its members had been cancelled.
    bool spared() const noexcept { return spared_; }

  private:
    struct Cut {};

    void disarm() noexcept;
    void check() noexcept;
    bool decide() noexcept;
    void spring_trap() noexcept;
    uint32_t nodes_of_part(uint32_t nodes_expected) const noexcept;
    bool cut_after(const ggml_tensor & node) const noexcept;
    void end_part() noexcept;

    std::vector<Member> members_;
    std::shared_ptr<const CancelFlag> way_; // raised by those that come first; null if there are none
    StepCost cost_;
    double cut_seconds_ = 0.0;
    bool only_unanimous_ = false;
    bool fired_ = false;
    bool spared_ = false;
    uint32_t n_computed_ = 0;
    uint32_t n_asked_ = 0;    // nodes that eval() was asked about; those after n_computed_ are the part in progress
    uint32_t part_nodes_ = 0; // fewest nodes of a part
    uint32_t nodes_expected_ = 0;
    int32_t n_tokens_ = 0;
    uint32_t trap_node_ = 0;
    uint32_t trap_later_ = 0; // steps that come before the one with the trap
    std::shared_ptr<CancelFlag> trap_flag_;
};

} // namespace pyllmcancel
