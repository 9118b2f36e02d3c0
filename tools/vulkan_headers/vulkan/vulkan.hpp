// Vulkan's C++ header with what ggml takes of newer ones: Debian 12 has 1.3.239, without VK_EXT_layer_settings. For
// tools/test_vulkan.py and python -m bench.gpu --backend vulkan only. The extension is asked for where the validation layer is installed, and otherwise ignored.

#include_next <vulkan/vulkan.hpp>

#ifndef VK_EXT_layer_settings

namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void * pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

    VkStructureType sType = static_cast<VkStructureType>(1000496000);
    const void * pNext = nullptr;
    uint32_t settingCount;
    const LayerSettingEXT * pSettings;
};

} // namespace vk

#endif
