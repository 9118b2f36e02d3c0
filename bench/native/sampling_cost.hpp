#pragma once

#include "model/model.hpp"
#include "sampling/sampler.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace probe {

// Nanoseconds that the core's sampler takes for one row of logits, for each of `count` calls.
std::vector<int64_t> sampler_times(const std::shared_ptr<pyllmcancel::Model> & model,
                                   const pyllmcancel::SamplingParams & params, const std::vector<float> & logits,
                                   int32_t count);

// The same for what llama.cpp's own server does with these parameters: every token of the vocabulary becomes a candidate,
// and a chain of llama.cpp's samplers chooses one.
std::vector<int64_t> chain_times(const std::shared_ptr<pyllmcancel::Model> & model,
                                 const pyllmcancel::SamplingParams & params, const std::vector<float> & logits,
                                 int32_t count);

} // namespace probe
