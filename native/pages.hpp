#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pyllmcancel {

// How pages are given back: unmapped, or to the heap if there is no `mapping`.
struct ReleasePages {
    void * mapping = nullptr;
    std::size_t n_mapped = 0;

    void operator()(uint8_t * bytes) const noexcept;
};

// Plain memory for a copy of cells or of a state, not written yet. Large ones are of huge pages where the system has them:
// the kernel takes several times as long to hand out ordinary pages as it takes to copy something into them, and nobody
// can be cancelled in the meantime. They are mapped, not taken from a heap, so that the system gets them back at once.
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
