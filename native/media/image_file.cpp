#include "media/image_file.hpp"

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#include "stb/stb_image.h"

#include <algorithm>
#include <cstring>

namespace pyllmcancel {
namespace {

// A file that is read piece by piece, so that its decoding can be ended: a progressive JPEG of a kilobyte may have hundreds
// of scans of all pixels.
struct Reading {
    std::string_view rest;
    DecodingLimit limit;
};

int read_piece(void * user, char * data, int size) {
    auto & reading = *static_cast<Reading *>(user);
    if (reading.limit.is_over()) {
        return 0;
    }
    const std::size_t count = std::min(reading.rest.size(), static_cast<std::size_t>(size));
    std::memcpy(data, reading.rest.data(), count);
    reading.rest.remove_prefix(count);
    return static_cast<int>(count);
}

void skip_piece(void * user, int count) {
    auto & reading = *static_cast<Reading *>(user);
    reading.rest.remove_prefix(std::min(reading.rest.size(), static_cast<std::size_t>(std::max(0, count))));
}

int is_at_end(void * user) {
    auto & reading = *static_cast<Reading *>(user);
    return reading.limit.is_over() || reading.rest.empty() ? 1 : 0;
}

struct FreePixels {
    void operator()(stbi_uc * pixels) const noexcept { stbi_image_free(pixels); }
};

} // namespace

std::optional<std::pair<int32_t, int32_t>> image_size(std::string_view file) {
    int width = 0;
    int height = 0;
    int channels = 0;
    const auto * bytes = reinterpret_cast<const stbi_uc *>(file.data());
    if (!stbi_info_from_memory(bytes, static_cast<int>(file.size()), &width, &height, &channels) || width < 1 ||
        height < 1) {
        return std::nullopt;
    }
    return std::make_pair(width, height);
}

BitmapOwner read_image(std::string_view file, const CancelFlag & flag, double seconds) {
    Reading reading{file, DecodingLimit(flag, seconds)};
    const stbi_io_callbacks callbacks{read_piece, skip_piece, is_at_end};
    int width = 0;
    int height = 0;
    int channels = 0;
    const std::unique_ptr<stbi_uc, FreePixels> pixels(
        stbi_load_from_callbacks(&callbacks, &reading, &width, &height, &channels, 3));
    reading.limit.check();
    if (!pixels) {
        const char * why = stbi_failure_reason();
        throw UsageError(std::string("it cannot be decoded: ") + (why ? why : "unknown"));
    }
    return BitmapOwner(mtmd_bitmap_init(static_cast<uint32_t>(width), static_cast<uint32_t>(height), pixels.get()));
}

} // namespace pyllmcancel
