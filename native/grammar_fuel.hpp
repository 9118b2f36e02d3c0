#pragma once

#include "cancel_flag.hpp"

#include <cstdint>
#include <stdexcept>

namespace pyllmcancel {

// Following the grammar would take more time, or memory, than one answer may have.
struct GrammarTooComplex : std::runtime_error {
    GrammarTooComplex() : std::runtime_error("the grammar is too ambiguous") {}
};

// The request was cancelled meanwhile.
struct GrammarInterrupted : std::runtime_error {
    GrammarInterrupted() : std::runtime_error("the request was cancelled") {}
};

// How much work on a grammar the sampling of one token may still take.
class GrammarFuel {
  public:
    static constexpr int64_t FULL = int64_t{1} << 19U; // a unit is some ten nanoseconds

    // At the start of each sampling. burn() throws when `flag` is raised; it may be null.
    void fill(const CancelFlag * flag) noexcept {
        flag_ = flag;
        left_ = FULL;
    }

    // Throws GrammarTooComplex, GrammarInterrupted.
    void burn(uint32_t units) {
        // Whenever a multiple is passed: `units` may be larger than LOOK_EVERY.
        const int64_t before = left_ / LOOK_EVERY;
        left_ -= units;
        if (left_ < 0) {
            throw GrammarTooComplex();
        }
        if (left_ / LOOK_EVERY != before && flag_ != nullptr && flag_->raised()) {
            throw GrammarInterrupted();
        }
    }

  private:
    static constexpr int64_t LOOK_EVERY = 1024; // units between two looks at the flag

    const CancelFlag * flag_ = nullptr;
    int64_t left_ = FULL;
};

} // namespace pyllmcancel
