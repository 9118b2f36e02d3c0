#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pyllmcancel {

// The placement of a model's weights. pyllmcancel/placement.py checks it against the devices of the machine.
struct Placement {
    int32_t n_gpu_layers = 0; // the number of layers, from the last, including the output's; negative: all
    bool names_devices = false; // false: llama.cpp chooses
    std::vector<std::string> devices;
    int32_t split_mode = LLAMA_SPLIT_MODE_LAYER;
    std::vector<float> tensor_split; // each device's share; empty: by free memory
    int32_t main_gpu = 0;
    std::vector<std::pair<std::string, std::string>> overrides; // tensors' pattern, buffer type; the first that matches
};

// Throws UsageError if std::regex, which llama.cpp has match tensors' names, cannot read it.
void check_tensor_pattern(const std::string & pattern);

// Owns the arrays that llama_model_params only points to.
class PlacementParams {
  public:
    // Throws UsageError for unknown names.
    explicit PlacementParams(const Placement & placement);
    PlacementParams(const PlacementParams &) = delete;
    PlacementParams & operator=(const PlacementParams &) = delete;

    // `params` are valid while this lives.
    void set(llama_model_params & params);

  private:
    Placement placement_;
    std::vector<ggml_backend_dev_t> devices_; // ends with a null
    std::vector<float> tensor_split_; // as long as llama.cpp reads
    std::vector<llama_model_tensor_buft_override> overrides_; // ends with a null
};

} // namespace pyllmcancel
