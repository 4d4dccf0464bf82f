// Memory of the device (or of its stand-in) that is exactly as large as asked for: whoever watches sees an
// element touched behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
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
    ~DeviceBuffer() { static_cast<void>(cudaFree(memory_)); }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    Value* data() const { return static_cast<Value*>(memory_); }
    std::size_t size() const { return count_; }

    /// `values` has size() values.
    void write(const std::vector<Value>& values) {
        check_cuda(cudaMemcpy(memory_, values.data(), count_ * sizeof(Value), cudaMemcpyHostToDevice),
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

/// Bytes of the device behind a few that are somebody else's. Only those are written here: a kernel that
/// leaves out a byte of its own is found by whoever watches for memory that nobody has written.
class GuardedBytes {
  public:
    GuardedBytes(std::size_t before, std::size_t count) : before_(before), memory_(before + count) {
        memory_.fill(guard, before_);
    }
    std::uint8_t* data() const { return memory_.data() + before_; }
    /// Waits for the device. Throws std::runtime_error where somebody else's bytes were written.
    std::vector<std::uint8_t> read() const {
        std::vector<std::uint8_t> all = memory_.read();
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(before_);
        if (std::any_of(all.begin(), begin, [](std::uint8_t byte) { return byte != guard; }))
            throw std::runtime_error("written before a buffer's begin");
        all.erase(all.begin(), begin);
        return all;
    }

  private:
    static constexpr std::uint8_t guard = 0x5a;
    std::size_t before_;
    DeviceBuffer<std::uint8_t> memory_;
};

}  // namespace hpcai500::drivers
