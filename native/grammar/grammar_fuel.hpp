#pragma once

#include <cstdint>
#include <stdexcept>

namespace pyllmcancel {

// Following the grammar would take more time, or memory, than one answer may have.
struct GrammarTooComplex : std::runtime_error {
    GrammarTooComplex() : std::runtime_error("the grammar is too ambiguous") {}
};

// The amount of work on a grammar that the sampling of one token may still take.
class GrammarFuel {
  public:
    static constexpr int64_t FULL = int64_t{1} << 19U; // a unit is some ten nanoseconds

    // Called at the start of each sampling.
    void fill() noexcept { left_ = FULL; }

    void burn(uint32_t units) {
        left_ -= units;
        if (left_ < 0) {
            throw GrammarTooComplex();
        }
    }

  private:
    int64_t left_ = FULL;
};

} // namespace pyllmcancel
