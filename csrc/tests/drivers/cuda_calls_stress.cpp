// What a refused call leaves behind: nothing. CUDA keeps the last error for whoever asks next.
#include <stdexcept>
#include <string>
#include <vector>

#include "core/gradients/compression_cuda.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"

namespace hpcai500::drivers {
namespace {

constexpr int no_such_device = 9999;

void norms_on(int device, const DeviceBuffer<float>& tensor, const DeviceBuffer<double>& norms) {
    const std::span<const float> only[] = {{tensor.data(), tensor.size()}};
    const DeviceBuffer<std::uint8_t> workspace(
        compression_cuda_workspace(1, static_cast<std::int64_t>(tensor.size())));
    layer_norms_cuda(only, norms.data(), {workspace.data(), device, nullptr});
}

}  // namespace

void stress_calls(int rounds) {
    const DeviceBuffer<float> tensor(std::vector<float>(9, 2.0f));
    for (int round = 0; round < rounds; ++round) {
        const DeviceBuffer<double> norms(1);
        std::string refused;
        try {
            norms_on(no_such_device, tensor, norms);
        } catch (const std::runtime_error& error) {
            refused = error.what();
        }
        if (refused.find("cudaSetDevice") == std::string::npos)
            throw std::runtime_error("calls: a device that does not exist was not refused: " + refused);
        norms_on(0, tensor, norms);
        if (norms.read()[0] != 6.0) throw std::runtime_error("calls: a good call after a refused one failed");
    }
}

}  // namespace hpcai500::drivers
