// Compiled by a cross-compiler, never run.
#include "platform/platform.hpp"

// In this order, and without the macros min and max.
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>

#include <windows.h>

#include <process.h>

#include <limits>
#include <new>

namespace pyllmcancel::platform {

long process_id() noexcept { return _getpid(); }

uint64_t memory_bytes() noexcept {
    MEMORYSTATUSEX status{};
    status.dwLength = sizeof status;
    GlobalMemoryStatusEx(&status);
    return status.ullTotalPhys;
}

void free_mapped_pages(char *, char *) noexcept {}

int64_t cpu_time_us() noexcept {
    FILETIME created{}, ended{}, kernel{}, user{};
    GetProcessTimes(GetCurrentProcess(), &created, &ended, &kernel, &user);
    const auto us = [](const FILETIME & time) { // in units of 100 ns
        return static_cast<int64_t>((uint64_t{time.dwHighDateTime} << 32U) + time.dwLowDateTime) / 10;
    };
    return us(kernel) + us(user);
}

std::tm local_time(std::time_t time) noexcept {
    std::tm local{};
    localtime_s(&local, &time);
    return local;
}

struct Thread {
    void (*work)(void *);
    void * argument;
    HANDLE handle;
};

namespace {

unsigned __stdcall run(void * given) {
    const auto & thread = *static_cast<Thread *>(given);
    thread.work(thread.argument);
    return 0;
}

} // namespace

Thread * start_thread(std::size_t stack_bytes, void (*work)(void *), void * argument) noexcept {
    if (stack_bytes > std::numeric_limits<unsigned>::max()) {
        return nullptr;
    }
    auto * thread = new (std::nothrow) Thread{work, argument, nullptr};
    if (thread == nullptr) {
        return nullptr;
    }
    thread->handle = reinterpret_cast<HANDLE>(_beginthreadex(nullptr, static_cast<unsigned>(stack_bytes), run, thread,
                                                             STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr));
    if (thread->handle == nullptr) {
        delete thread;
        return nullptr;
    }
    return thread;
}

void join_thread(Thread * thread) noexcept {
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
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
    WSAPOLLFD asked{static_cast<SOCKET>(socket), 0, 0};
    return WSAPoll(&asked, 1, 0) == 1 && (asked.revents & (POLLHUP | POLLERR)) != 0;
}

std::string file_of(const void * address) {
    HMODULE module = nullptr;
    constexpr DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (GetModuleHandleExA(flags, static_cast<const char *>(address), &module) == 0) {
        return {};
    }
    std::string path(32768, '\0');
    path.resize(GetModuleFileNameA(module, path.data(), static_cast<DWORD>(path.size())));
    return path;
}

std::vector<int> usable_cores() { return {}; }

Cores cores() noexcept { return {0, 1, 1}; }

KernelFile::KernelFile(const char * /*path*/) noexcept : descriptor_(-1) {}

KernelFile::~KernelFile() = default;

std::string_view KernelFile::read_into(std::string & room) const noexcept {
    return std::string_view(room).substr(0, descriptor_ < 0 ? 0 : room.size());
}

} // namespace pyllmcancel::platform
