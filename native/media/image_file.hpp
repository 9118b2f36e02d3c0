#pragma once

#include "media/decoding.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace pyllmcancel {

// The width and height that an image file's header says; none if it is not one that can be read. Nothing is decoded.
std::optional<std::pair<int32_t, int32_t>> image_size(std::string_view file);

// Decodes an image file: the first picture of an animation. Ends early when `flag` is raised, and after `seconds`. Throws
// UsageError.
BitmapOwner read_image(std::string_view file, const CancelFlag & flag, double seconds);

} // namespace pyllmcancel
