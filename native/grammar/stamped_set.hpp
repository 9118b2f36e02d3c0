#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace pyllmcancel {

// A set of numbers that is cleared in constant time: a grammar needs an empty one for every character of every candidate.
class StampedSet {
  public:
    StampedSet() : slots_(64) {}

    void clear() noexcept {
        ++stamp_;
        size_ = 0;
    }

    // Returns whether the key is new.
    bool insert(uint64_t key) {
        const bool fresh = place(slots_, key);
        if (fresh && 2 * ++size_ > slots_.size()) {
            grow();
        }
        return fresh;
    }

    std::size_t size() const noexcept { return size_; }

  private:
    struct Slot {
        uint64_t stamp = 0;
        uint64_t key = 0;
    };

    bool place(std::vector<Slot> & slots, uint64_t key) const noexcept {
        const std::size_t mask = slots.size() - 1;
        // The upper half of a product with an odd constant (2^64 over the golden ratio) is spread well.
        for (std::size_t at = (key * 0x9E3779B97F4A7C15U) >> 32U;; ++at) {
            Slot & slot = slots[at & mask];
            if (slot.stamp != stamp_) {
                slot = {stamp_, key};
                return true;
            }
            if (slot.key == key) {
                return false;
            }
        }
    }

    void grow() {
        std::vector<Slot> larger(2 * slots_.size());
        for (const Slot & slot : slots_) {
            if (slot.stamp == stamp_) {
                place(larger, slot.key);
            }
        }
        slots_ = std::move(larger);
    }

    std::vector<Slot> slots_;
    std::size_t size_ = 0;
    uint64_t stamp_ = 1;
};

} // namespace pyllmcancel
