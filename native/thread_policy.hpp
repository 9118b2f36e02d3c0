#pragma once

#include "core_times.hpp"

#include <cstdint>

namespace pyllmcancel {

// How many threads a step should have, between 1 and `most`: as many as there are cores for them.
//
// ggml's threads meet at a barrier after every node of the graph, some hundred times a token, and spin there. One that
// shares its core with another program is off it for some milliseconds, again and again, and all wait for it each time:
// two threads beside four busy programs on two cores decode twenty times slower than one does. So what counts is the
// room: the cores' time that was idle or this process's own. What others took, or the machine's host, is theirs.
//
// Fewer threads at once, more when the room has lasted; and the later, the more time it cost to have too many.
class ThreadPolicy {
  public:
    explicit ThreadPolicy(int32_t most) noexcept : most_(most), n_threads_(most) {}

    int32_t n_threads() const noexcept { return n_threads_; }

    // Whether a reading at `at` would tell anything; before that, idle time is told too coarsely.
    bool is_due(int64_t at) const noexcept;

    // No step follows for now.
    void rest() noexcept { has_rested_ = true; }

    // Whether the rest has been so long that a reading, which tells of all of it, tells little of the moment.
    bool is_stale(int64_t at) const noexcept;

    // A reading has been made, as is due. `n_crowded_out`: see CoreClock; what counts for it if it is stale.
    void take(const CoreTimes & now, int32_t n_crowded_out = 0) noexcept;

  private:
    int32_t most_;
    int32_t n_threads_;
    bool has_begun_ = false;
    bool has_rested_ = false; // since the last reading
    CoreTimes last_;
    int64_t spare_since_ = 0; // from when on there has been room for more; the last reading, if there was none
    int64_t raise_after_ = 0;
};

} // namespace pyllmcancel
