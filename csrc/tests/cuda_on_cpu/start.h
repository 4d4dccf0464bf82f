// start() of core/cuda_launch.cuh: the kernel has run when it returns.
#pragma once

#include <tuple>

#include "core/cuda_call.h"
#include "grid.h"

namespace hpcai500 {

template <class... Parameters, class... Arguments>
void start(const CudaLaunch& launch, void (*kernel)(Parameters...), Arguments&&... arguments) {
    static_assert((sizeof(Parameters) + ... + 0) <= 32764, "a kernel has 32,764 bytes of arguments");
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
        static void run(void* self) {
            const auto& call = *static_cast<const Call*>(self);
            std::apply(call.kernel, call.arguments);
        }
    };
    Call call{kernel, std::tuple<Parameters...>(static_cast<Arguments&&>(arguments)...)};
    cuda_on_cpu::run({launch.what, launch.blocks, launch.threads, &Call::run, &call});
    check_cuda(cudaGetLastError(), launch.what);
}

}  // namespace hpcai500
