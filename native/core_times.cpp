#include "core_times.hpp"

#include "steady_clock.hpp"

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace pyllmcancel {
namespace {

constexpr std::size_t LONGEST_LINE = 256; // of one core: eleven numbers

// Empty where there is no such call: then the number of threads is fixed.
std::vector<int> usable_cpus() {
    std::vector<int> cpus;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(cpu, &set)) {
                cpus.push_back(cpu);
            }
        }
    }
#endif
    return cpus;
}

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

std::string_view read_into(std::string & room, int file) {
    const ssize_t size = file < 0 ? 0 : pread(file, room.data(), room.size(), 0);
    return std::string_view(room).substr(0, static_cast<std::size_t>(std::max<ssize_t>(0, size)));
}

int64_t cpu_time_us() {
    timespec spent{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return int64_t{spent.tv_sec} * 1'000'000 + spent.tv_nsec / 1'000;
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
        // Of a core: its number, user, nice, system, idle, waiting for a disk …
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

CoreClock::CoreClock()
    : cpus_(usable_cpus()), has_all_(static_cast<long>(cpus_.size()) == sysconf(_SC_NPROCESSORS_ONLN)),
      us_per_tick_(1'000'000 / std::max(1L, sysconf(_SC_CLK_TCK))),
      text_(LONGEST_LINE * static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)) + 1), '\0'),
      stat_(open("/proc/stat", O_RDONLY | O_CLOEXEC)), loadavg_(open("/proc/loadavg", O_RDONLY | O_CLOEXEC)) {}

CoreClock::~CoreClock() {
    for (const int file : {stat_, loadavg_}) {
        if (file >= 0) {
            close(file);
        }
    }
}

std::optional<CoreTimes> CoreClock::read() {
    const auto ticks = idle_ticks(read_into(text_, stat_), cpus_);
    return ticks ? std::optional(CoreTimes{now_us(), *ticks * us_per_tick_, cpu_time_us()}) : std::nullopt;
}

int32_t CoreClock::n_crowded_out() {
    return has_all_ ? n_runnable(read_into(text_, loadavg_)) - static_cast<int32_t>(cpus_.size()) : 0;
}

} // namespace pyllmcancel
