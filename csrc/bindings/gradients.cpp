// Buckets of gradients, on the processor and on a device, and streams of memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "core/gradients/cast.h"
#include "core/gradients/compression_cuda.h"
#include "core/gradients/layer_norms.h"
#include "core/gradients/memory_streams.h"
#include "core/gradients/quantise.h"
#include "core/gradients/shared_sum.h"
#include "python.h"

namespace py = pybind11;
using namespace py::literals;

namespace hpcai500::bindings {
namespace {

Wire wire_of(const std::string& name) {
    if (name == "float32") return Wire::float32;
    if (name == "float16") return Wire::float16;
    if (name == "bfloat16") return Wire::bfloat16;
    throw py::value_error("wire must be float32, float16 or bfloat16, got " + name);
}

const char* wire_type(Wire wire) {
    return wire == Wire::float32 ? "f4" : wire == Wire::float16 ? "f2" : "u2";
}

float scale_of(double scale) {
    const auto rounded = static_cast<float>(scale);
    if (!std::isfinite(rounded))
        throw py::value_error("scale must be finite in float32, got " + text_of(py::float_(scale)));
    return rounded;
}

void check_threads(int threads) {
    if (threads < 1) throw py::value_error("threads must be at least 1, got " + std::to_string(threads));
}

// The arrays of a call, all in one place, checked as they are named; at the end, that nothing that is written
// overlaps anything else.
class Bucket {
  public:
    Bucket(const py::sequence& tensors, const char* name, bool written, const Place& place) : place_(place) {
        const std::size_t size = py::len(tensors);
        held_.reserve(size);
        targets_.reserve(size);
        sources_.reserve(size);
        ranges_.reserve(size + 4);
        for (std::size_t index = 0; index < size; ++index) {
            held_.push_back(tensors[index]);
            const DenseFloats tensor = read_dense_floats(held_.back(), {name, index}, place, written);
            targets_.emplace_back(tensor.data, static_cast<std::size_t>(tensor.count));
            sources_.emplace_back(tensor.data, static_cast<std::size_t>(tensor.count));
            occupy(tensor.data, tensor.count * 4, {name, index}, written);
            count_ += tensor.count;
        }
    }

    std::int64_t size() const { return static_cast<std::int64_t>(held_.size()); }
    std::int64_t count() const { return count_; }
    SourceTensors sources() const { return sources_; }
    TargetTensors targets() const { return targets_; }

    const void* read(const py::object& object, const char* name, const std::string& type, std::int64_t least,
                     std::uintptr_t alignment = 1) {
        return flat(object, name, type, least, alignment, false).data;
    }
    void* write(const py::object& object, const char* name, const std::string& type, std::int64_t least,
                std::uintptr_t alignment = 1) {
        return flat(object, name, type, least, alignment, true).writable();
    }
    double* norms_if_any(const py::object& object) { return object.is_none() ? nullptr : norms(object); }
    // One float64 for each tensor; on a device there may be more.
    double* norms(const py::object& object) {
        const ArrayView array = flat(object, "norms", "f8", size(), 1, true);
        void* const memory = array.writable();
        if (place_.kind == Place::processor && array.count() != size())
            throw py::value_error("norms must have one item for each of the " + std::to_string(size()) +
                                  " tensors, got " + std::to_string(array.count()));
        return static_cast<double*>(memory);
    }

    void expect_no_overlap() const;
    // expect_no_overlap(), and where a device works.
    CudaPlace cuda_place(const py::object& workspace, std::uintptr_t stream) {
        const auto bytes = static_cast<std::int64_t>(compression_cuda_workspace(size(), count_));
        void* const memory = write(workspace, "workspace", "u1", bytes, 8);
        expect_no_overlap();
        return {memory, place_.device, reinterpret_cast<void*>(stream)};
    }

  private:
    struct Range {
        std::uintptr_t begin, end;
        bool written;
        ArrayName name;
    };

    ArrayView flat(const py::object& object, const char* name, const std::string& type, std::int64_t least,
                   std::uintptr_t alignment, bool written) {
        ArrayView array = read_array(object, {name}, place_);
        expect_flat(array, type, least);
        if (reinterpret_cast<std::uintptr_t>(array.data) % alignment != 0)
            throw py::value_error(array.name + " must begin at a multiple of " + std::to_string(alignment));
        occupy(array.data, array.count() * (type.back() - '0'), {name}, written);
        return array;
    }

    void occupy(const void* data, std::int64_t bytes, const ArrayName& name, bool written) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        ranges_.push_back({begin, begin + static_cast<std::uintptr_t>(bytes), written, name});
    }

    Place place_;
    std::vector<py::object> held_;  // a sequence may make its items when it is asked
    std::vector<std::span<float>> targets_;
    std::vector<std::span<const float>> sources_;
    std::vector<Range> ranges_;
    std::int64_t count_ = 0;
};

void Bucket::expect_no_overlap() const {
    std::vector<Range> ranges = ranges_;
    std::erase_if(ranges, [](const Range& range) { return range.begin == range.end; });
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    // Of those read and of those written so far, the one that reaches farthest.
    const Range* farthest[2] = {nullptr, nullptr};
    for (const Range& range : ranges) {
        for (const bool written : {false, true}) {
            const Range* const before = farthest[written];
            if (before != nullptr && (written || range.written) && range.begin < before->end)
                throw py::value_error(range.name.text() + " overlaps " + before->name.text() + " in memory");
        }
        const Range*& own = farthest[range.written];
        if (own == nullptr || own->end < range.end) own = &range;
    }
}

void pack_tensors(const py::sequence& sources, const py::object& out, const std::string& wire, double scale,
                  int threads, const py::object& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    check_threads(threads);
    Bucket bucket(sources, "sources", false, processor);
    void* const memory = bucket.write(out, "out", wire_type(type), bucket.count());
    double* const norm_memory = bucket.norms_if_any(norms);
    bucket.expect_no_overlap();
    const ReleasedGil released;
    pack(bucket.sources(), memory, type, factor, norm_memory, threads);
}

void pack_on_device(const py::sequence& sources, const py::object& out, const py::object& workspace,
                    const std::string& wire, double scale, int device, std::uintptr_t stream,
                    const py::object& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    Bucket bucket(sources, "sources", false, on_device(device));
    void* const memory = bucket.write(out, "out", wire_type(type), bucket.count());
    double* const norm_memory = bucket.norms_if_any(norms);
    const CudaPlace place = bucket.cuda_place(workspace, stream);
    const ReleasedGil released;
    pack_cuda(bucket.sources(), memory, type, factor, norm_memory, place);
}

void unpack_tensors(const py::object& source, const py::sequence& targets, const std::string& wire,
                    double scale, int threads, const py::object& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    check_threads(threads);
    Bucket bucket(targets, "targets", true, processor);
    const void* const memory = bucket.read(source, "source", wire_type(type), bucket.count());
    double* const norm_memory = bucket.norms_if_any(norms);
    bucket.expect_no_overlap();
    const ReleasedGil released;
    unpack(memory, bucket.targets(), type, factor, norm_memory, threads);
}

void unpack_on_device(const py::object& source, const py::sequence& targets, const py::object& workspace,
                      const std::string& wire, double scale, int device, std::uintptr_t stream,
                      const py::object& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    Bucket bucket(targets, "targets", true, on_device(device));
    const void* const memory = bucket.read(source, "source", wire_type(type), bucket.count());
    double* const norm_memory = bucket.norms_if_any(norms);
    const CudaPlace place = bucket.cuda_place(workspace, stream);
    const ReleasedGil released;
    unpack_cuda(memory, bucket.targets(), type, factor, norm_memory, place);
}

float* residual_of(Bucket& bucket, const py::object& residual) {
    if (residual.is_none()) return nullptr;
    return static_cast<float*>(bucket.write(residual, "residual", "f4", bucket.count()));
}

void quantise_tensors(const py::sequence& sources, const py::object& out, double scale, int threads,
                      const py::object& residual, const py::object& norms) {
    const float factor = scale_of(scale);
    check_threads(threads);
    Bucket bucket(sources, "sources", false, processor);
    void* const memory = bucket.write(out, "out", "u1", quantised_bytes(bucket.count()));
    float* const carried = residual_of(bucket, residual);
    double* const norm_memory = bucket.norms_if_any(norms);
    bucket.expect_no_overlap();
    const ReleasedGil released;
    quantise(bucket.sources(), static_cast<std::uint8_t*>(memory), carried, factor, norm_memory, threads);
}

void quantise_on_device(const py::sequence& sources, const py::object& out, const py::object& workspace,
                        double scale, int device, std::uintptr_t stream, const py::object& residual,
                        const py::object& norms) {
    const float factor = scale_of(scale);
    Bucket bucket(sources, "sources", false, on_device(device));
    void* const memory = bucket.write(out, "out", "u1", quantised_bytes(bucket.count()), 4);
    float* const carried = residual_of(bucket, residual);
    double* const norm_memory = bucket.norms_if_any(norms);
    const CudaPlace place = bucket.cuda_place(workspace, stream);
    const ReleasedGil released;
    quantise_cuda(bucket.sources(), static_cast<std::uint8_t*>(memory), carried, factor, norm_memory, place);
}

void dequantise_tensors(const py::object& source, const py::sequence& targets, double scale, int threads,
                        bool accumulate, const py::object& norms) {
    const float factor = scale_of(scale);
    check_threads(threads);
    Bucket bucket(targets, "targets", true, processor);
    const void* const memory = bucket.read(source, "source", "u1", quantised_bytes(bucket.count()));
    double* const norm_memory = bucket.norms_if_any(norms);
    bucket.expect_no_overlap();
    const ReleasedGil released;
    dequantise(static_cast<const std::uint8_t*>(memory), bucket.targets(), factor, accumulate, norm_memory,
               threads);
}

void dequantise_on_device(const py::object& source, const py::sequence& targets, const py::object& workspace,
                          double scale, int device, std::uintptr_t stream, bool accumulate,
                          const py::object& norms) {
    const float factor = scale_of(scale);
    Bucket bucket(targets, "targets", true, on_device(device));
    const void* const memory = bucket.read(source, "source", "u1", quantised_bytes(bucket.count()), 4);
    double* const norm_memory = bucket.norms_if_any(norms);
    const CudaPlace place = bucket.cuda_place(workspace, stream);
    const ReleasedGil released;
    dequantise_cuda(static_cast<const std::uint8_t*>(memory), bucket.targets(), factor, accumulate,
                    norm_memory, place);
}

void norms_of_tensors(const py::sequence& tensors, const py::object& out, int threads) {
    check_threads(threads);
    Bucket bucket(tensors, "tensors", false, processor);
    double* const memory = bucket.norms(out);
    bucket.expect_no_overlap();
    const ReleasedGil released;
    layer_norms(bucket.sources(), memory, threads);
}

void norms_on_device(const py::sequence& tensors, const py::object& out, const py::object& workspace,
                     int device, std::uintptr_t stream) {
    Bucket bucket(tensors, "tensors", false, on_device(device));
    auto* const memory = static_cast<double*>(bucket.write(out, "out", "f8", bucket.size()));
    const CudaPlace place = bucket.cuda_place(workspace, stream);
    const ReleasedGil released;
    layer_norms_cuda(bucket.sources(), memory, place);
}

ArrayView whole_lines(const py::object& object, const char* name) {
    ArrayView view = read_array(object, {name}, processor);
    expect_flat(view, "u1", 0);
    if (view.shape[0] % 64 != 0 || reinterpret_cast<std::uintptr_t>(view.data) % 64 != 0)
        throw py::value_error(view.name + " must be whole lines of 64 bytes, and begin at a multiple of 64");
    return view;
}

void copy_stream(const py::object& source, const py::object& out, int threads) {
    check_threads(threads);
    Bucket arrays(py::list(), "tensors", false, processor);
    const std::int64_t bytes = whole_lines(source, "source").count();
    const void* const from = arrays.read(source, "source", "u1", bytes);
    void* const to = arrays.write(out, "out", "u1", bytes);
    whole_lines(out, "out");
    arrays.expect_no_overlap();
    const ReleasedGil released;
    stream_copy(from, to, static_cast<std::size_t>(bytes), threads);
}

std::uint32_t read_stream(const py::object& source, int threads) {
    check_threads(threads);
    const ArrayView lines = whole_lines(source, "source");
    const ReleasedGil released;
    return stream_read(lines.data, static_cast<std::size_t>(lines.count()), threads);
}

using PySharedSum = OfOneProcess<SharedSum>;

std::unique_ptr<PySharedSum> make_shared_sum(const std::string& path, int rank, int ranks) {
    return std::make_unique<PySharedSum>("SharedSum", std::make_unique<SharedSum>(path, rank, ranks));
}

void shared_all_reduce(PySharedSum& self, const py::object& values) {
    SharedSum& sum = *self;
    const DenseFloats floats = read_dense_floats(values, {"values"}, processor, true);
    const ReleasedGil released;
    sum.all_reduce({floats.data, static_cast<std::size_t>(floats.count)});
}

void register_device(py::module_& module) {
    module.def("compression_cuda_workspace", &compression_cuda_workspace, "tensors"_a, "elements"_a,
               "Bytes of device memory that a bucket's functions need.");
    module.def("compression_cuda_most_tensors", &compression_cuda_most_tensors,
               "Tensors that a bucket on a device may have.");
    module.def("pack_cuda", &pack_on_device, "sources"_a, "out"_a, "workspace"_a, py::kw_only(), "wire"_a,
               "scale"_a, "device"_a, "stream"_a, "norms"_a = py::none(), "pack on a device. Does not wait.");
    module.def("unpack_cuda", &unpack_on_device, "source"_a, "targets"_a, "workspace"_a, py::kw_only(),
               "wire"_a, "scale"_a, "device"_a, "stream"_a, "norms"_a = py::none(),
               "unpack on a device. Does not wait.");
    module.def("quantise_cuda", &quantise_on_device, "sources"_a, "out"_a, "workspace"_a, py::kw_only(),
               "scale"_a, "device"_a, "stream"_a, "residual"_a = py::none(), "norms"_a = py::none(),
               "quantise on a device. Does not wait.");
    module.def("dequantise_cuda", &dequantise_on_device, "source"_a, "targets"_a, "workspace"_a,
               py::kw_only(), "scale"_a, "device"_a, "stream"_a, "accumulate"_a = false,
               "norms"_a = py::none(), "dequantise on a device. Does not wait.");
    module.def("layer_norms_cuda", &norms_on_device, "tensors"_a, "out"_a, "workspace"_a, py::kw_only(),
               "device"_a, "stream"_a, "layer_norms on a device. Does not wait.");
}

}  // namespace

void register_gradients(py::module_& module) {
    module.def("pack", &pack_tensors, "sources"_a, "out"_a, py::kw_only(), "wire"_a, "scale"_a, "threads"_a,
               "norms"_a = py::none(),
               "Writes the scaled tensors to `out`, one after the other, in the wire's type.");
    module.def("unpack", &unpack_tensors, "source"_a, "targets"_a, py::kw_only(), "wire"_a, "scale"_a,
               "threads"_a, "norms"_a = py::none(),
               "Writes the scaled values of a packed buffer to the tensors.");
    module.def("quantised_bytes", &quantised_bytes, "count"_a, "Bytes of the int8 form of `count` values.");
    module.def("quantise", &quantise_tensors, "sources"_a, "out"_a, py::kw_only(), "scale"_a, "threads"_a,
               "residual"_a = py::none(), "norms"_a = py::none(),
               "Writes scales and int8 codes of the scaled tensors plus the residual, and the new residual.");
    module.def("dequantise", &dequantise_tensors, "source"_a, "targets"_a, py::kw_only(), "scale"_a,
               "threads"_a, "accumulate"_a = false, "norms"_a = py::none(),
               "Writes or adds the scaled values of the int8 form.");
    module.def("layer_norms", &norms_of_tensors, "tensors"_a, "out"_a, py::kw_only(), "threads"_a,
               "Writes the L2 norm of each tensor.");
    module.def("stream_copy", &copy_stream, "source"_a, "out"_a, py::kw_only(), "threads"_a,
               "Copies bytes past the cache.");
    module.def("stream_read", &read_stream, "source"_a, py::kw_only(), "threads"_a,
               "Reads bytes and returns the largest 32-bit word without its highest bit.");
    py::class_<PySharedSum>(module, "SharedSum", "Sums of float32 values over the processes of one host.")
        .def(py::init(&make_shared_sum), "path"_a, "rank"_a, "ranks"_a)
        .def("all_reduce", &shared_all_reduce, "values"_a, "Replaces values by their sum over all ranks.")
        .def("close", &PySharedSum::close, "The other ranks no longer wait for this one.");
    register_device(module);
}

}  // namespace hpcai500::bindings
