#pragma once

#include "devices/core_times.hpp"

#include <cstdint>

namespace pyllmcancel {

// Decides how many threads a step should have, between 1 and `most`: as many as there are free cores. ggml's threads
// meet at a barrier after every node of the graph, some hundred times a token, and spin there. One that shares its core
// with another program is descheduled for milliseconds at a time, and all wait for it: two threads beside four busy
// programs on two cores decode twenty times slower than one does. So the number follows the cores' time that was idle
// or this process's own; the rest is other programs', or the virtual machine's host's. There are fewer threads at once,
// but more only after a while: the longer, the more time too many of them have cost.
class ThreadPolicy {
  public:
    explicit ThreadPolicy(int32_t most) noexcept : most_(most), n_threads_(most) {}

    int32_t n_threads() const noexcept { return n_threads_; }

    // Returns whether a reading is due at `at`; the kernel counts idle time too coarsely for shorter intervals.
    bool is_due(int64_t at) const noexcept;

    // Notes that no step follows for now.
    void rest() noexcept { has_rested_ = true; }

    // Returns whether the rest has been so long that a reading, an average over all of it, says little about this
    // moment.
    bool is_stale(int64_t at) const noexcept;

    // Takes a reading that was due. `n_crowded_out`: see CoreClock; used if the reading is stale.
    void take(const CoreTimes & now, int32_t n_crowded_out = 0) noexcept;

  private:
    int32_t most_;
    int32_t n_threads_;
    bool has_begun_ = false;
    bool has_rested_ = false; // since the last reading
    CoreTimes last_;
    int64_t spare_since_ = 0; // since when there have been cores for more threads; the last reading, if there are none
    int64_t raise_after_ = 0;
};

} // namespace pyllmcancel
