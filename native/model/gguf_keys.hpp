#pragma once

#include "gguf.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pyllmcancel {

// The keys of a GGUF file, read as llama.cpp reads them: only of the types that it takes, so that what it refuses with a
// message of its own is absent here.
class GgufKeys {
  public:
    explicit GgufKeys(const gguf_context * file);

    const gguf_context * file() const noexcept { return file_; }

    // Empty if there is none.
    const std::string & architecture() const noexcept { return architecture_; }

    // With the architecture's prefix.
    std::string full(std::string_view name) const;

    // For a complete key.
    std::optional<std::string> text(const std::string & key) const;
    std::optional<uint32_t> number(const std::string & key) const;

    // Returns one number, or an array's, as llama.cpp gives them to the layers; empty if there is none.
    std::vector<uint32_t> numbers(const std::string & key) const;

    // One real number, or an array's.
    std::vector<double> reals(int64_t id) const;

    // The strings of an array; empty if there is none.
    std::vector<std::string_view> texts(const std::string & key) const;

  private:
    int64_t find(const std::string & key, gguf_type type) const;

    const gguf_context * file_;
    std::string architecture_;
};

} // namespace pyllmcancel
