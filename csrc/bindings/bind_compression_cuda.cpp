#include <cstdint>
#include <string>
#include <vector>

#include "bindings.h"
#include "compression_arguments.h"
#include "core/gradients/compression_cuda.h"
#include "core/gradients/quantise.h"
#include "device_array.h"
#include "dlpack_array.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

// The arrays of a call in device memory, checked as HostTensors and FlatArrays check the processor's.
class DeviceBucket {
  public:
    DeviceBucket(const py::sequence& tensors, const char* name, bool written, int device) : device_(device) {
        const std::size_t size = py::len(tensors);
        held_.reserve(size);
        targets_.reserve(size);
        sources_.reserve(size);
        ranges_.reserve(size + 4);
        for (std::size_t index = 0; index < size; ++index) {
            held_.push_back(tensors[index]);
            const DenseFloats tensor = tensor_of(held_.back(), {name, index}, written);
            targets_.emplace_back(tensor.data, static_cast<std::size_t>(tensor.count));
            sources_.emplace_back(tensor.data, static_cast<std::size_t>(tensor.count));
            occupy(tensor.data, tensor.count * 4, {name, index}, written);
            count_ += tensor.count;
        }
    }

    void* flat(const py::object& object, const char* name, const std::string& type, std::int64_t least,
               bool written, std::int64_t alignment = 1) {
        const DeviceArray array = device_array(object, name, device_);
        check_flat(array.view, type, least);
        if (reinterpret_cast<std::uintptr_t>(array.data) % static_cast<std::uintptr_t>(alignment) != 0)
            throw py::value_error(std::string(name) + " must begin at a multiple of " +
                                  std::to_string(alignment));
        occupy(array.data, element_count(array.view) * (type.back() - '0'), {name}, written);
        return written ? writable(array) : array.data;
    }

    double* norms(const py::object& object) {
        if (object.is_none()) return nullptr;
        return static_cast<double*>(
            flat(object, "norms", "f8", static_cast<std::int64_t>(sources_.size()), true));
    }

    // The last argument to be looked at: nothing may overlap anything that is written.
    CudaPlace place(const py::object& workspace, std::uintptr_t stream) {
        const std::size_t bytes =
            compression_cuda_workspace(static_cast<std::int64_t>(sources_.size()), count_);
        void* const memory = flat(workspace, "workspace", "u1", static_cast<std::int64_t>(bytes), true, 8);
        check_no_overlap(ranges_);
        return {memory, device_, reinterpret_cast<void*>(stream)};
    }

    std::int64_t count() const { return count_; }
    SourceTensors sources() const { return sources_; }
    TargetTensors targets() const { return targets_; }

  private:
    DenseFloats tensor_of(const py::object& object, const ArrayName& name, bool written) const {
        DlpackTensor shown;
        if (show_by_dlpack(object, name, shown)) {
            check_on_device(shown, name, device_);
            if (const auto tensor = dense_floats(shown)) return *tensor;
        }
        const DeviceArray array = device_array(object, name.text(), device_);
        check_dense_floats(array.view);
        return {static_cast<float*>(written ? writable(array) : array.data), element_count(array.view)};
    }

    void occupy(const void* data, std::int64_t bytes, const ArrayName& name, bool written) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        ranges_.push_back({begin, begin + static_cast<std::uintptr_t>(bytes), written, name});
    }

    int device_;
    std::vector<py::object> held_;  // a sequence may make its items when it is asked
    std::vector<std::span<float>> targets_;
    std::vector<std::span<const float>> sources_;
    std::vector<MemoryRange> ranges_;
    std::int64_t count_ = 0;
};

void pack_on_device(const py::sequence& sources, const py::object& out, const py::object& workspace,
                    const std::string& wire, double scale, int device, std::uintptr_t stream,
                    const py::object& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    DeviceBucket bucket(sources, "sources", false, device);
    void* const memory = bucket.flat(out, "out", wire_type(type), bucket.count(), true);
    double* const norm_memory = bucket.norms(norms);
    const CudaPlace place = bucket.place(workspace, stream);
    const ReleasedGil released;
    pack_cuda(bucket.sources(), memory, type, factor, norm_memory, place);
}

void unpack_on_device(const py::object& source, const py::sequence& targets, const py::object& workspace,
                      const std::string& wire, double scale, int device, std::uintptr_t stream,
                      const py::object& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    DeviceBucket bucket(targets, "targets", true, device);
    const void* const memory = bucket.flat(source, "source", wire_type(type), bucket.count(), false);
    double* const norm_memory = bucket.norms(norms);
    const CudaPlace place = bucket.place(workspace, stream);
    const ReleasedGil released;
    unpack_cuda(memory, bucket.targets(), type, factor, norm_memory, place);
}

void quantise_on_device(const py::sequence& sources, const py::object& out, const py::object& workspace,
                        double scale, int device, std::uintptr_t stream, const py::object& residual,
                        const py::object& norms) {
    const float factor = scale_of(scale);
    DeviceBucket bucket(sources, "sources", false, device);
    void* const memory = bucket.flat(out, "out", "u1", quantised_bytes(bucket.count()), true, 4);
    void* const carried =
        residual.is_none() ? nullptr : bucket.flat(residual, "residual", "f4", bucket.count(), true);
    double* const norm_memory = bucket.norms(norms);
    const CudaPlace place = bucket.place(workspace, stream);
    const ReleasedGil released;
    quantise_cuda(bucket.sources(), static_cast<std::uint8_t*>(memory), static_cast<float*>(carried), factor,
                  norm_memory, place);
}

void dequantise_on_device(const py::object& source, const py::sequence& targets, const py::object& workspace,
                          double scale, int device, std::uintptr_t stream, bool accumulate,
                          const py::object& norms) {
    const float factor = scale_of(scale);
    DeviceBucket bucket(targets, "targets", true, device);
    const void* const memory = bucket.flat(source, "source", "u1", quantised_bytes(bucket.count()), false, 4);
    double* const norm_memory = bucket.norms(norms);
    const CudaPlace place = bucket.place(workspace, stream);
    const ReleasedGil released;
    dequantise_cuda(static_cast<const std::uint8_t*>(memory), bucket.targets(), factor, accumulate,
                    norm_memory, place);
}

void norms_on_device(const py::sequence& tensors, const py::object& out, const py::object& workspace,
                     int device, std::uintptr_t stream) {
    DeviceBucket bucket(tensors, "tensors", false, device);
    auto* const memory = static_cast<double*>(
        bucket.flat(out, "out", "f8", static_cast<std::int64_t>(bucket.sources().size()), true));
    const CudaPlace place = bucket.place(workspace, stream);
    const ReleasedGil released;
    layer_norms_cuda(bucket.sources(), memory, place);
}

}  // namespace

void register_compression_cuda(py::module_& module) {
    module.def("compression_cuda_workspace", &compression_cuda_workspace, py::arg("tensors"),
               py::arg("elements"), "Bytes of device memory that a bucket's functions need.");
    module.def("compression_cuda_most_tensors", &compression_cuda_most_tensors,
               "Tensors that a bucket on a device may have.");
    module.def("pack_cuda", &pack_on_device, py::arg("sources"), py::arg("out"), py::arg("workspace"),
               py::kw_only(), py::arg("wire"), py::arg("scale"), py::arg("device"), py::arg("stream"),
               py::arg("norms") = py::none(), "pack on a device. Does not wait.");
    module.def("unpack_cuda", &unpack_on_device, py::arg("source"), py::arg("targets"), py::arg("workspace"),
               py::kw_only(), py::arg("wire"), py::arg("scale"), py::arg("device"), py::arg("stream"),
               py::arg("norms") = py::none(), "unpack on a device. Does not wait.");
    module.def("quantise_cuda", &quantise_on_device, py::arg("sources"), py::arg("out"), py::arg("workspace"),
               py::kw_only(), py::arg("scale"), py::arg("device"), py::arg("stream"),
               py::arg("residual") = py::none(), py::arg("norms") = py::none(),
               "quantise on a device. Does not wait.");
    module.def("dequantise_cuda", &dequantise_on_device, py::arg("source"), py::arg("targets"),
               py::arg("workspace"), py::kw_only(), py::arg("scale"), py::arg("device"), py::arg("stream"),
               py::arg("accumulate") = false, py::arg("norms") = py::none(),
               "dequantise on a device. Does not wait.");
    module.def("layer_norms_cuda", &norms_on_device, py::arg("tensors"), py::arg("out"), py::arg("workspace"),
               py::kw_only(), py::arg("device"), py::arg("stream"),
               "layer_norms on a device. Does not wait.");
}

}  // namespace hpcai500::bindings
