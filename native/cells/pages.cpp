#include "cells/pages.hpp"

#include "platform/llama_calls.hpp"

#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pyllmcancel {

void ReleasePages::operator()(uint8_t * bytes) const noexcept {
#if defined(MADV_HUGEPAGE)
    if (mapping != nullptr) {
        munmap(mapping, n_mapped);
        return;
    }
#endif
    std::free(bytes); // NOLINT(*-no-malloc)
}

Pages::Pages(std::size_t n_bytes) noexcept : n_bytes_(n_bytes) {
    PYLLMCANCEL_FAIL(pages, )
#if defined(MADV_HUGEPAGE)
    constexpr std::size_t huge_page = std::size_t{2} << 20U;
    if (n_bytes >= huge_page) {
        const std::size_t n_mapped = n_bytes + huge_page;
        void * const mapping = mmap(nullptr, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED) {
            return;
        }
        const std::size_t offset = huge_page - reinterpret_cast<uintptr_t>(mapping) % huge_page;
        bytes_ = Bytes(static_cast<uint8_t *>(mapping) + offset, ReleasePages{mapping, n_mapped});
        // Not for the rest: its huge page would be resident as a whole. Without huge pages ordinary ones are used.
        static_cast<void>(madvise(bytes_.get(), n_bytes / huge_page * huge_page, MADV_HUGEPAGE));
        return;
    }
#endif
    bytes_ = Bytes(static_cast<uint8_t *>(std::malloc(n_bytes)), ReleasePages{}); // NOLINT(*-no-malloc)
}

} // namespace pyllmcancel
