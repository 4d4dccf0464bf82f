#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings.h"
#include "compression_arguments.h"
#include "core/gradients/layer_norms.h"
#include "core/gradients/memory_streams.h"
#include "core/gradients/quantise.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

using MaybeArray = std::optional<py::array>;

void pack_tensors(const py::sequence& sources, const py::array& out, const std::string& wire, double scale,
                  int threads, const MaybeArray& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    check_threads(threads);
    const HostTensors tensors(sources, "sources", false);
    FlatArrays arrays(tensors);
    void* const memory = arrays.write(out, "out", wire_type(type), tensors.count());
    double* const norm_memory = arrays.norms(norms, tensors.size());
    arrays.check_no_overlap();
    const ReleasedGil released;
    pack(tensors.sources(), memory, type, factor, norm_memory, threads);
}

void unpack_tensors(const py::array& source, const py::sequence& targets, const std::string& wire,
                    double scale, int threads, const MaybeArray& norms) {
    const Wire type = wire_of(wire);
    const float factor = scale_of(scale);
    check_threads(threads);
    const HostTensors tensors(targets, "targets", true);
    FlatArrays arrays(tensors);
    const void* const memory = arrays.read(source, "source", wire_type(type), tensors.count());
    double* const norm_memory = arrays.norms(norms, tensors.size());
    arrays.check_no_overlap();
    const ReleasedGil released;
    unpack(memory, tensors.targets(), type, factor, norm_memory, threads);
}

void quantise_tensors(const py::sequence& sources, const py::array& out, double scale, int threads,
                      const MaybeArray& residual, const MaybeArray& norms) {
    const float factor = scale_of(scale);
    check_threads(threads);
    const HostTensors tensors(sources, "sources", false);
    FlatArrays arrays(tensors);
    void* const memory = arrays.write(out, "out", "u1", quantised_bytes(tensors.count()));
    void* const carried = arrays.write(residual, "residual", "f4", tensors.count());
    double* const norm_memory = arrays.norms(norms, tensors.size());
    arrays.check_no_overlap();
    const ReleasedGil released;
    quantise(tensors.sources(), static_cast<std::uint8_t*>(memory), static_cast<float*>(carried), factor,
             norm_memory, threads);
}

void dequantise_tensors(const py::array& source, const py::sequence& targets, double scale, int threads,
                        bool accumulate, const MaybeArray& norms) {
    const float factor = scale_of(scale);
    check_threads(threads);
    const HostTensors tensors(targets, "targets", true);
    FlatArrays arrays(tensors);
    const void* const memory = arrays.read(source, "source", "u1", quantised_bytes(tensors.count()));
    double* const norm_memory = arrays.norms(norms, tensors.size());
    arrays.check_no_overlap();
    const ReleasedGil released;
    dequantise(static_cast<const std::uint8_t*>(memory), tensors.targets(), factor, accumulate, norm_memory,
               threads);
}

void norms_of_tensors(const py::sequence& tensors_sequence, const py::array& out, int threads) {
    check_threads(threads);
    const HostTensors tensors(tensors_sequence, "tensors", false);
    FlatArrays arrays(tensors);
    double* const memory = arrays.norms(out, tensors.size());
    arrays.check_no_overlap();
    const ReleasedGil released;
    layer_norms(tensors.sources(), memory, threads);
}

std::size_t line_bytes(const ArrayView& view, const void* data) {
    check_flat(view, "u1", 0);
    if (view.shape[0] % 64 != 0 || reinterpret_cast<std::uintptr_t>(data) % 64 != 0)
        throw py::value_error(view.name + " must be whole lines of 64 bytes, and begin at a multiple of 64");
    return static_cast<std::size_t>(view.shape[0]);
}

void copy_stream(const py::array& source, const py::array& out, int threads) {
    check_threads(threads);
    FlatArrays arrays(HostTensors(py::list(), "tensors", false));
    const std::size_t bytes = line_bytes(view_of(source, "source"), source.data());
    const void* const from = arrays.read(source, "source", "u1", 0);
    void* const to = arrays.write(out, "out", "u1", source.size());
    static_cast<void>(line_bytes(view_of(out, "out"), to));
    arrays.check_no_overlap();
    const ReleasedGil released;
    stream_copy(from, to, bytes, threads);
}

std::uint32_t read_stream(const py::array& source, int threads) {
    check_threads(threads);
    const std::size_t bytes = line_bytes(view_of(source, "source"), source.data());
    const ReleasedGil released;
    return stream_read(source.data(), bytes, threads);
}

}  // namespace

void register_compression(py::module_& module) {
    module.def("pack", &pack_tensors, py::arg("sources"), py::arg("out"), py::kw_only(), py::arg("wire"),
               py::arg("scale"), py::arg("threads"), py::arg("norms") = py::none(),
               "Writes the scaled tensors to `out`, one after the other, in the wire's type.");
    module.def("unpack", &unpack_tensors, py::arg("source"), py::arg("targets"), py::kw_only(),
               py::arg("wire"), py::arg("scale"), py::arg("threads"), py::arg("norms") = py::none(),
               "Writes the scaled values of a packed buffer to the tensors.");
    module.def("quantised_bytes", &quantised_bytes, py::arg("count"),
               "Bytes of the int8 form of `count` values.");
    module.def("quantise", &quantise_tensors, py::arg("sources"), py::arg("out"), py::kw_only(),
               py::arg("scale"), py::arg("threads"), py::arg("residual") = py::none(),
               py::arg("norms") = py::none(),
               "Writes scales and int8 codes of the scaled tensors plus the residual, and the new residual.");
    module.def("dequantise", &dequantise_tensors, py::arg("source"), py::arg("targets"), py::kw_only(),
               py::arg("scale"), py::arg("threads"), py::arg("accumulate") = false,
               py::arg("norms") = py::none(), "Writes or adds the scaled values of the int8 form.");
    module.def("layer_norms", &norms_of_tensors, py::arg("tensors"), py::arg("out"), py::kw_only(),
               py::arg("threads"), "Writes the L2 norm of each tensor.");
    module.def("stream_copy", &copy_stream, py::arg("source"), py::arg("out"), py::kw_only(),
               py::arg("threads"), "Copies bytes past the cache.");
    module.def("stream_read", &read_stream, py::arg("source"), py::kw_only(), py::arg("threads"),
               "Reads bytes and returns the largest 32-bit word without its highest bit.");
}

}  // namespace hpcai500::bindings
