#include "pages.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pyllmcancel {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20U;

void * allocate(std::size_t n_bytes) noexcept {
#if defined(MADV_HUGEPAGE)
    if (n_bytes >= huge_page) {
        const std::size_t n_whole = (n_bytes + huge_page - 1) / huge_page * huge_page;
        void * const bytes = std::aligned_alloc(huge_page, n_whole);
        if (bytes != nullptr) {
            // A system that has none goes on with ordinary ones.
            static_cast<void>(madvise(bytes, n_whole, MADV_HUGEPAGE));
        }
        return bytes;
    }
#endif
    return std::malloc(n_bytes); // NOLINT(*-no-malloc)
}

} // namespace

Pages::Pages(std::size_t n_bytes) noexcept
    : bytes_(static_cast<uint8_t *>(allocate(n_bytes))), n_bytes_(bytes_ ? n_bytes : 0) {}

} // namespace pyllmcancel
