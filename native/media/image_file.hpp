#pragma once

#include "step/cancel_flag.hpp"

#include "mtmd.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace pyllmcancel {

struct FreeBitmap {
    void operator()(mtmd_bitmap * bitmap) const noexcept { mtmd_bitmap_free(bitmap); }
};
using BitmapOwner = std::unique_ptr<mtmd_bitmap, FreeBitmap>;

// The width and height that an image file's header says; none if it is not one that can be read. Nothing is decoded.
std::optional<std::pair<int32_t, int32_t>> image_size(std::string_view file);

// Decodes an image file: the first picture of an animation. Ends early when `flag` is raised, and after `seconds`. Throws
// UsageError.
BitmapOwner read_image(std::string_view file, const CancelFlag & flag, double seconds);

} // namespace pyllmcancel
