// libFuzzer's entry: the file of a picture, as the core measures and decodes it.

#include "media/image_file.hpp"
#include "platform/errors.hpp"

#define STB_IMAGE_IMPLEMENTATION
#include "stb/stb_image.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

// What mtmd makes of pixels: a copy, so that the sanitizer sees whether all of them are there.
struct mtmd_bitmap {
    uint32_t width;
    uint32_t height;
    std::vector<unsigned char> pixels;
};

mtmd_bitmap * mtmd_bitmap_init(uint32_t width, uint32_t height, const unsigned char * data) {
    return new mtmd_bitmap{width, height, {data, data + std::size_t(3) * width * height}};
}

void mtmd_bitmap_free(mtmd_bitmap * bitmap) { delete bitmap; }

namespace {

// Less than the server's limits, so that an input takes no second.
constexpr int64_t MOST_PIXELS = 1 << 20;
constexpr int MOST_PASSES = 20;

// As `pyllmcancel.media.files` has them: no other formats of the decoder are reached.
bool is_taken(std::string_view file) {
    for (const std::string_view magic : {"\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "GIF87a", "GIF89a", "BM"}) {
        if (file.substr(0, magic.size()) == magic) {
            return true;
        }
    }
    return false;
}

int passes(std::string_view file) {
    int count = 0;
    for (std::size_t at = file.find("\xff\xda"); at != std::string_view::npos; at = file.find("\xff\xda", at + 1)) {
        ++count;
    }
    return count;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, std::size_t size) {
    const std::string_view file(reinterpret_cast<const char *>(data), size);
    const auto claimed = is_taken(file) ? pyllmcancel::image_size(file) : std::nullopt;
    if (!claimed || int64_t(claimed->first) * claimed->second > MOST_PIXELS || passes(file) > MOST_PASSES) {
        return 0;
    }
    const pyllmcancel::CancelFlag flag;
    try {
        const pyllmcancel::BitmapOwner bitmap = pyllmcancel::read_image(file, flag, /* seconds */ 10.0);
        if (int64_t(bitmap->width) != claimed->first || int64_t(bitmap->height) != claimed->second) {
            std::abort(); // the size that was checked is not the size that was decoded
        }
    } catch (const pyllmcancel::UsageError &) {
    }
    return 0;
}
