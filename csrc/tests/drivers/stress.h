// Programs that drive the core the way no well-behaved program does. A sanitizer ends them, or they throw
// where a result is not what it must be; else they return what they have done, in a line.
#pragma once

#include <string>
#include <vector>

namespace hpcai500::drivers {

using Words = std::vector<std::string>;

std::string stress_loader(const Words& folder_and_files);
std::string stress_climate(const Words& file);
std::string stress_buckets(const Words& rounds_and_threads);
std::string stress_boxes(const Words& rounds_and_threads);
std::string stress_sums(const Words& none);

}  // namespace hpcai500::drivers
