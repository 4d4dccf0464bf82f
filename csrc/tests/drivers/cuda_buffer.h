// Memory of the device (or of its stand-in) that is exactly as large as asked for: whoever watches sees an
// element touched behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/cuda_call.h"

namespace hpcai500::drivers {

template <class Value>
class DeviceBuffer {
  public:
    explicit DeviceBuffer(std::size_t count) : count_(count) {
        check_cuda(cudaMalloc(&memory_, count * sizeof(Value)), "cudaMalloc");
    }
    explicit DeviceBuffer(const std::vector<Value>& values) : DeviceBuffer(values.size()) { write(values); }
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : count_(other.count_), memory_(std::exchange(other.memory_, nullptr)) {}
    ~DeviceBuffer() { static_cast<void>(cudaFree(memory_)); }

    Value* data() const { return static_cast<Value*>(memory_); }
    std::size_t size() const { return count_; }

    void write(const std::vector<Value>& values, std::size_t at = 0) {
        check_cuda(
            cudaMemcpy(data() + at, values.data(), values.size() * sizeof(Value), cudaMemcpyHostToDevice),
            "copying to the device");
    }
    /// The first `count` values become bytes of `byte`.
    void fill(int byte, std::size_t count) {
        check_cuda(cudaMemset(memory_, byte, count * sizeof(Value)), "filling memory of the device");
    }
    /// Waits for the device.
    std::vector<Value> read() const {
        std::vector<Value> values(count_);
        check_cuda(cudaDeviceSynchronize(), "waiting for the device");
        check_cuda(cudaMemcpy(values.data(), memory_, count_ * sizeof(Value), cudaMemcpyDeviceToHost),
                   "copying from the device");
        return values;
    }

  private:
    std::size_t count_;
    void* memory_ = nullptr;
};

/// Values of the device behind a few that are somebody else's, so that they lie at any address that their
/// type may have. Without values only those before them are written: a kernel that leaves out a byte of its
/// own is found by whoever watches for memory that nobody has written.
template <class Value>
class Guarded {
  public:
    Guarded(std::size_t before, std::size_t count) : before_(before), memory_(before + count) {
        memory_.fill(guard, before_);
    }
    Guarded(std::size_t before, const std::vector<Value>& values) : Guarded(before, values.size()) {
        memory_.write(values, before_);
    }
    Value* data() const { return memory_.data() + before_; }
    std::size_t size() const { return memory_.size() - before_; }
    /// Waits for the device. Throws std::runtime_error where somebody else's bytes were written.
    std::vector<Value> read() const {
        std::vector<Value> all = memory_.read();
        const auto* const bytes = reinterpret_cast<const std::uint8_t*>(all.data());
        if (std::any_of(bytes, bytes + before_ * sizeof(Value),
                        [](std::uint8_t byte) { return byte != guard; }))
            throw std::runtime_error("written before an array's begin");
        all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(before_));
        return all;
    }

  private:
    static constexpr std::uint8_t guard = 0x5a;
    std::size_t before_;
    DeviceBuffer<Value> memory_;
};

}  // namespace hpcai500::drivers
