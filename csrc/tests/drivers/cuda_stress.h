// The families of kernels that cuda_stress runs: each function does `rounds` rounds of seeded hostile inputs,
// compares the device with its CPU twin, and throws std::runtime_error that tells where they differ.
#pragma once

namespace hpcai500::drivers {

void stress_compression(int rounds);
void stress_detection(int rounds);
void stress_images(int rounds);
void stress_norms(int rounds);

}  // namespace hpcai500::drivers
