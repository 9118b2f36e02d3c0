#pragma once

#include "platform/platform.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pyllmcancel {

// CPU times, in microseconds, of the cores that this process may use.
struct CoreTimes {
    int64_t at = 0;   // when they were read, on a steady clock
    int64_t idle = 0; // of all these cores together, since the machine began
    int64_t own = 0;  // CPU time of this process
};

// Returns the ticks that `cpus` were idle or waited for a disk, from `text`, the beginning of /proc/stat. Empty unless
// all of them are there.
std::optional<int64_t> idle_ticks(std::string_view text, const std::vector<int> & cpus);

// Returns the runnable threads, including the reading one, from `text`, all of /proc/loadavg; 0 if they are not there.
int32_t n_runnable(std::string_view text);

// Reads the times of the cores that the thread which made it may use. A reading takes some hundredths of a millisecond,
// more where there are many cores.
class CoreClock {
  public:
    CoreClock();

    // Empty if the system does not report them.
    std::optional<CoreTimes> read();

    // The machine's runnable threads, the calling one among them, less its cores: how many have no core at this moment, if
    // positive. 0 where this process may not use all cores: there is no count for some of them.
    int32_t n_crowded_out();

  private:
    explicit CoreClock(const platform::Cores & cores);

    std::vector<int> cpus_;
    bool has_all_;
    int64_t us_per_tick_;
    std::string text_; // room for what is read
    platform::KernelFile stat_;
    platform::KernelFile loadavg_;
};

} // namespace pyllmcancel
