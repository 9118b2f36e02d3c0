#pragma once

#include "media/decoding.hpp"

#include <cstdint>
#include <string_view>

namespace pyllmcancel {

// Decodes a WAV, MP3 or FLAC file to one channel of `rate` samples a second. Ends early when `flag` is raised, and after
// `seconds`. Throws UsageError.
BitmapOwner read_sound(std::string_view file, int32_t rate, const CancelFlag & flag, double seconds);

} // namespace pyllmcancel
