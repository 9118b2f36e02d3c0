#pragma once

#include "platform/errors.hpp"
#include "platform/steady_clock.hpp"
#include "step/cancel_flag.hpp"

#include "mtmd.h"

#include <cstdint>
#include <memory>

namespace pyllmcancel {

struct FreeBitmap {
    void operator()(mtmd_bitmap * bitmap) const noexcept { mtmd_bitmap_free(bitmap); }
};
using BitmapOwner = std::unique_ptr<mtmd_bitmap, FreeBitmap>;

// The end of a file's decoding before its time: a decoder asks between two pieces of the file.
class DecodingLimit {
  public:
    DecodingLimit(const CancelFlag & flag, double seconds)
        : flag_(flag), until_us_(now_us() + static_cast<int64_t>(seconds * 1e6)) {}

    // Sticky.
    bool is_over() {
        ended_ = ended_ || flag_.raised() || now_us() > until_us_;
        return ended_;
    }

    // Throws UsageError if the decoding was ended.
    void check() const {
        if (flag_.raised()) {
            throw UsageError("cancelled");
        }
        if (ended_) {
            throw UsageError("its decoding takes too long");
        }
    }

  private:
    const CancelFlag & flag_;
    int64_t until_us_;
    bool ended_ = false;
};

} // namespace pyllmcancel
