#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace pyllmcancel {

// Plain memory for a copy of cells or of a state, not written yet. Large ones are of huge pages where the system has them:
// the kernel takes several times as long to hand out ordinary pages as it takes to copy something into them, and nobody
// can be cancelled in the meantime.
class Pages {
  public:
    Pages() = default;
    explicit Pages(std::size_t n_bytes) noexcept;

    // False if there was no memory.
    explicit operator bool() const noexcept { return bytes_ != nullptr; }

    uint8_t * data() const noexcept { return bytes_.get(); }
    std::size_t size() const noexcept { return n_bytes_; }

  private:
    struct Free {
        void operator()(uint8_t * bytes) const noexcept { std::free(bytes); } // NOLINT(*-no-malloc)
    };

    std::unique_ptr<uint8_t[], Free> bytes_;
    std::size_t n_bytes_ = 0;
};

} // namespace pyllmcancel
