#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pyllmcancel {

// What the cores that a process may use have done by a moment; times are in microseconds.
struct CoreTimes {
    int64_t at = 0;   // the moment, on a steady clock
    int64_t idle = 0; // of all these cores together, since the machine began
    int64_t own = 0;  // CPU time of this process
};

// Ticks that `cpus` have idled, or waited for a disk, as `text`, the beginning of /proc/stat, tells it. Nothing if it does
// not tell of all of them.
std::optional<int64_t> idle_ticks(std::string_view text, const std::vector<int> & cpus);

// Threads that run or would, the reading one among them, as `text`, all of /proc/loadavg, tells it; 0 if it does not.
int32_t n_runnable(std::string_view text);

// Reads what the system tells of the cores that the thread which made it may use. A reading takes some hundredths of a
// millisecond, more where there are many cores.
class CoreClock {
  public:
    CoreClock();
    ~CoreClock();
    CoreClock(const CoreClock &) = delete;
    CoreClock & operator=(const CoreClock &) = delete;

    // Nothing where the system does not tell.
    std::optional<CoreTimes> read();

    // How many of the machine's threads run or would at this moment, the calling one among them, less its cores: 0 or
    // less if all have one, and where this process may not use all cores, for nobody counts theirs.
    int32_t n_crowded_out();

  private:
    std::vector<int> cpus_;
    bool has_all_;
    int64_t us_per_tick_;
    std::string text_; // room for what is read
    int stat_;         // open files; -1: there is none
    int loadavg_;
};

} // namespace pyllmcancel
