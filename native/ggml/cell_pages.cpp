// The cells of a context on the CPU take memory when they are first written, not when they are made: each sequence may have
// as many cells as a request may need, though most requests need few.

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

// Gives whole pages back to the system, which has them read as zero from then on, and take no memory until they are
// written. ggml's memory is private and anonymous, for which alone this holds. Returns whether it was done.
bool give_back(void * begin, std::size_t n_bytes) {
#if defined(__linux__)
    return madvise(begin, n_bytes, MADV_DONTNEED) == 0;
#else
    (void) begin;
    (void) n_bytes;
    return false;
#endif
}

std::size_t page_bytes() {
#if defined(__linux__)
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#else
    return 1;
#endif
}

} // namespace

// llama.cpp's cells call it (cmake/llama_cpp.cmake) where they would write zeros over all of them.
extern "C" void pyllmcancel_clear_cells(ggml_backend_buffer_t buffer, uint8_t value) {
    const bool is_plain = ggml_backend_buffer_get_type(buffer) == ggml_backend_cpu_buffer_type();
    const std::size_t size = ggml_backend_buffer_get_size(buffer);
    auto * begin = static_cast<uint8_t *>(ggml_backend_buffer_get_base(buffer));
    const std::size_t page = page_bytes();
    const std::size_t before = (page - reinterpret_cast<uintptr_t>(begin) % page) % page;
    if (is_plain && value == 0 && size > before + page) {
        const std::size_t whole = (size - before) / page * page;
        if (give_back(begin + before, whole)) {
            std::memset(begin, 0, before);
            std::memset(begin + before + whole, 0, size - before - whole);
            return;
        }
    }
    ggml_backend_buffer_clear(buffer, value);
}
