#include "platform/platform.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace pyllmcancel::platform {

long process_id() noexcept { return getpid(); }

uint64_t memory_bytes() noexcept {
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void free_mapped_pages(char * begin, char * end) noexcept {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
    const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
    if (first < last) {
        madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
    }
}

int64_t cpu_time_us() noexcept {
    timespec spent{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return int64_t{spent.tv_sec} * 1'000'000 + spent.tv_nsec / 1'000;
}

std::tm local_time(std::time_t time) noexcept {
    std::tm local{};
    localtime_r(&time, &local);
    return local;
}

struct Thread {
    void (*work)(void *);
    void * argument;
    pthread_t id;
};

namespace {

void * run(void * given) {
    const auto & thread = *static_cast<Thread *>(given);
    thread.work(thread.argument);
    return nullptr;
}

} // namespace

Thread * start_thread(std::size_t stack_bytes, void (*work)(void *), void * argument) noexcept {
    constexpr std::size_t page = 1 << 16; // of any system
    auto * thread = new (std::nothrow) Thread{work, argument, {}};
    if (thread == nullptr) {
        return nullptr;
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    const bool begun = pthread_attr_setstacksize(&attributes, (stack_bytes / page + 1) * page) == 0 &&
                       pthread_create(&thread->id, &attributes, run, thread) == 0;
    pthread_attr_destroy(&attributes);
    if (!begun) {
        delete thread;
        return nullptr;
    }
    return thread;
}

void join_thread(Thread * thread) noexcept {
    pthread_join(thread->id, nullptr);
    delete thread;
}

bool run_in_thread(std::size_t stack_bytes, void (*work)(void *), void * argument) noexcept {
    Thread * thread = start_thread(stack_bytes, work, argument);
    if (thread != nullptr) {
        join_thread(thread);
    }
    return thread != nullptr;
}

bool has_hung_up(int socket) noexcept {
#ifdef POLLRDHUP
    constexpr short closed = POLLRDHUP;
#else
    // On macOS only a broken connection is seen before all its data were read.
    constexpr short closed = 0;
#endif
    pollfd asked{socket, closed, 0};
    return poll(&asked, 1, 0) == 1 && (asked.revents & (closed | POLLHUP | POLLERR)) != 0;
}

std::string file_of(const void * address) {
    Dl_info info{};
    return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::vector<int> usable_cores() {
    std::vector<int> found;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int core = 0; core < CPU_SETSIZE; ++core) {
            if (CPU_ISSET(core, &set)) {
                found.push_back(core);
            }
        }
    }
#endif
    return found;
}

Cores cores() noexcept {
    return {sysconf(_SC_NPROCESSORS_ONLN), std::max(1L, sysconf(_SC_NPROCESSORS_CONF)),
            1'000'000 / std::max(1L, sysconf(_SC_CLK_TCK))};
}

KernelFile::KernelFile(const char * path) noexcept : descriptor_(open(path, O_RDONLY | O_CLOEXEC)) {}

KernelFile::~KernelFile() {
    if (descriptor_ >= 0) {
        close(descriptor_);
    }
}

std::string_view KernelFile::read_into(std::string & room) const noexcept {
    const ssize_t size = descriptor_ < 0 ? 0 : pread(descriptor_, room.data(), room.size(), 0);
    return std::string_view(room).substr(0, static_cast<std::size_t>(std::max<ssize_t>(0, size)));
}

} // namespace pyllmcancel::platform
