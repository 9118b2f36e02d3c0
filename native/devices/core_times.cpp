#include "devices/core_times.hpp"

#include "platform/steady_clock.hpp"

#include <algorithm>
#include <charconv>

namespace pyllmcancel {
namespace {

constexpr std::size_t LONGEST_LINE = 256; // bytes for one core: eleven numbers

// The number that `text` begins with; -1 if it begins with none.
int64_t number(std::string_view text) {
    int64_t value = -1;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

std::string_view without_words(std::string_view text, int count) {
    for (; count > 0; --count) {
        text.remove_prefix(std::min(text.find(' '), text.size()));
        text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    }
    return text;
}

} // namespace

std::optional<int64_t> idle_ticks(std::string_view text, const std::vector<int> & cpus) {
    int64_t ticks = 0;
    std::size_t n_found = 0;
    // The cores come first.
    for (std::size_t end = 0; text.substr(0, 3) == "cpu" && (end = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(end + 1)) {
        const std::string_view line = text.substr(3, end - 3);
        // The line without a number is the sum of all.
        if (std::find(cpus.begin(), cpus.end(), number(line)) == cpus.end()) {
            continue;
        }
        // The line of a core: its number, user, nice, system, idle, waiting for a disk …
        const int64_t idle = number(without_words(line, 4));
        const int64_t waiting = number(without_words(line, 5));
        if (idle < 0 || waiting < 0) {
            return std::nullopt;
        }
        ticks += idle + waiting;
        ++n_found;
    }
    // Some sandboxes report no idle time at all.
    return n_found == cpus.size() && ticks > 0 ? std::optional(ticks) : std::nullopt;
}

int32_t n_runnable(std::string_view text) {
    return static_cast<int32_t>(std::max<int64_t>(0, number(without_words(text, 3))));
}

// If the system does not report its cores, read() finds none, and the number of threads is fixed.
CoreClock::CoreClock() : CoreClock(platform::cores()) {}

CoreClock::CoreClock(const platform::Cores & cores)
    : cpus_(platform::usable_cores()), has_all_(static_cast<long>(cpus_.size()) == cores.n_online),
      us_per_tick_(cores.us_per_tick), text_(LONGEST_LINE * static_cast<std::size_t>(cores.n_possible + 1), '\0'),
      stat_("/proc/stat"), loadavg_("/proc/loadavg") {}

std::optional<CoreTimes> CoreClock::read() {
    const auto ticks = idle_ticks(stat_.read_into(text_), cpus_);
    return ticks ? std::optional(CoreTimes{now_us(), *ticks * us_per_tick_, platform::cpu_time_us()}) : std::nullopt;
}

int32_t CoreClock::n_crowded_out() {
    return has_all_ ? n_runnable(loadavg_.read_into(text_)) - static_cast<int32_t>(cpus_.size()) : 0;
}

} // namespace pyllmcancel
