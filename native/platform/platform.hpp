#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

// Calls that differ among Linux, macOS and others. They are tested on Linux.
namespace pyllmcancel::platform {

long process_id() noexcept;

// The memory of the machine.
uint64_t memory_bytes() noexcept;

// Frees the memory of the whole pages of a file's mapping between two places. They are read from the file again if need be.
void free_mapped_pages(char * begin, char * end) noexcept;

// The CPU time of all threads of this process.
int64_t cpu_time_us() noexcept;

std::tm local_time(std::time_t time) noexcept;

// Starts a thread with a stack of at least `stack_bytes` that runs `work`; null if it cannot be started. join_thread()
// waits for its end, and frees it.
struct Thread;
Thread * start_thread(std::size_t stack_bytes, void (*work)(void *), void * argument) noexcept;
void join_thread(Thread * thread) noexcept;

// Runs `work` in a thread with a stack of at least `stack_bytes`, and waits for its end. False, and nothing has run, if
// the thread cannot be started.
bool run_in_thread(std::size_t stack_bytes, void (*work)(void *), void * argument) noexcept;

// Returns whether the other end of a connected socket has closed it, or the connection broke. Neither waits nor reads.
bool has_hung_up(int socket) noexcept;

// The file that was loaded for the code or data at `address`; empty if none was.
std::string file_of(const void * address);

// The cores that this thread may use; none if the system does not report them.
std::vector<int> usable_cores();

// How many cores run, and how many there may be. Of a tick, in which Linux counts CPU times, the microseconds.
struct Cores {
    long n_online = 0;
    long n_possible = 0;
    int64_t us_per_tick = 0;
};
Cores cores() noexcept;

// A file of the kernel's, which is opened once and read again and again. Other systems have none.
class KernelFile {
  public:
    explicit KernelFile(const char * path) noexcept;
    ~KernelFile();
    KernelFile(const KernelFile &) = delete;
    KernelFile & operator=(const KernelFile &) = delete;

    // Reads its present content, as far as it fits; nothing if there is no such file.
    std::string_view read_into(std::string & room) const noexcept;

  private:
    int descriptor_;
};

} // namespace pyllmcancel::platform
