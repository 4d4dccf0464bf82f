// The checks of a bucket's arguments, for arrays of the processor and of devices.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/gradients/cast.h"
#include "detection_arguments.h"
#include "dlpack_exchange.h"

namespace hpcai500::bindings {

/// "float32", "float16" or "bfloat16".
Wire wire_of(const std::string& name);
/// As in ArrayView: f4, f2, or u2, the bits of a bfloat16.
const char* wire_type(Wire wire);

/// Must be finite, as a float32 too.
float scale_of(double scale);

/// Must be at least 1.
void check_threads(int threads);

/// Memory that a call reads or writes.
struct MemoryRange {
    std::uintptr_t begin, end;
    bool written;
    ArrayName name;
};

/// Throws value_error where something written overlaps anything else.
void check_no_overlap(std::vector<MemoryRange> ranges);

/// Throws value_error unless the view is float32 and dense: some order of its axes visits memory without a
/// gap.
void check_dense_floats(const ArrayView& view);
std::int64_t element_count(const ArrayView& view);

/// Must be one-dimensional without gaps, of `type` and at least `least` items.
void check_flat(const ArrayView& view, const std::string& type, std::int64_t least);

/// Tensors of a bucket, checked and kept alive: NumPy arrays, or what DLPack shows in the processor's memory.
class HostTensors {
  public:
    HostTensors(const pybind11::sequence& tensors, const char* name, bool written);

    std::size_t size() const { return spans_.size(); }
    std::int64_t count() const { return count_; }
    SourceTensors sources() const { return sources_; }
    TargetTensors targets() const { return spans_; }
    const std::vector<MemoryRange>& ranges() const { return ranges_; }

  private:
    std::vector<pybind11::object> held_;
    std::vector<std::span<float>> spans_;
    std::vector<std::span<const float>> sources_;
    std::vector<MemoryRange> ranges_;
    std::int64_t count_ = 0;
};

/// The other arrays of a call: checks each, collects what it occupies, and then that nothing overlaps.
class FlatArrays {
  public:
    explicit FlatArrays(const HostTensors& tensors) : ranges_(tensors.ranges()) {}

    const void* read(const pybind11::array& array, const char* name, const std::string& type,
                     std::int64_t least);
    void* write(const pybind11::array& array, const char* name, const std::string& type, std::int64_t least);
    /// nullptr without one.
    void* write(const std::optional<pybind11::array>& array, const char* name, const std::string& type,
                std::int64_t least);
    /// Of exactly one float64 for each tensor.
    double* norms(const std::optional<pybind11::array>& array, std::size_t tensors);
    void check_no_overlap() const { bindings::check_no_overlap(ranges_); }

  private:
    std::vector<MemoryRange> ranges_;
};

}  // namespace hpcai500::bindings
