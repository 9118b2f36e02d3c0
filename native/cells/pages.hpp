#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pyllmcancel {

// The way to free pages: by unmapping them, or to the heap if there is no `mapping`.
struct ReleasePages {
    void * mapping = nullptr;
    std::size_t n_mapped = 0;

    void operator()(uint8_t * bytes) const noexcept;
};

// Uninitialized memory for a copy of cells or of a state. Large ones have huge pages where the system has them: faulting
// ordinary pages in takes several times as long as the copy itself, and no request can be cancelled in the meantime. They
// are mapped, not taken from the heap, so that the system gets them back at once.
class Pages {
  public:
    Pages() = default;
    explicit Pages(std::size_t n_bytes) noexcept;

    // False if there was no memory.
    explicit operator bool() const noexcept { return bytes_ != nullptr; }

    uint8_t * data() const noexcept { return bytes_.get(); }
    std::size_t size() const noexcept { return n_bytes_; }

  private:
    using Bytes = std::unique_ptr<uint8_t[], ReleasePages>;

    Bytes bytes_;
    std::size_t n_bytes_ = 0;
};

} // namespace pyllmcancel
