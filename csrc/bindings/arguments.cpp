#include <limits>
#include <memory>

#include "bindings.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

std::uint64_t bounded(const py::int_& value, std::uint64_t most, const char* name, const char* range) {
    const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
    const bool failed = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    if (failed || number > most)
        throw py::value_error(std::string(name) + " must be in [0, " + range + "), got " +
                              std::string(py::str(value)));
    return number;
}

}  // namespace

std::uint64_t seed_number(const py::int_& seed) {
    return bounded(seed, std::numeric_limits<std::uint64_t>::max(), "seed", "2**64");
}

std::uint32_t epoch_number(const py::int_& epoch) {
    return static_cast<std::uint32_t>(
        bounded(epoch, std::numeric_limits<std::uint32_t>::max(), "epoch", "2**32"));
}

SampleKey sample_key(const py::int_& seed, const py::int_& epoch, const py::int_& sample) {
    return {seed_number(seed), epoch_number(epoch),
            bounded(sample, std::numeric_limits<std::int64_t>::max(), "sample", "2**63")};
}

BytesView::BytesView(const py::handle& source) {
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
}

void* output_memory(const py::array& array, const DecodeSpec& spec, const std::string& name,
                    std::size_t images, std::size_t* found) {
    if (!array.writeable()) throw py::value_error(name + " must be writable");
    if ((array.flags() & py::array::c_style) == 0)
        throw py::value_error(name +
                              " must be C-contiguous: pass numpy.ascontiguousarray(...) or a fresh array");
    const std::size_t item = item_size(spec.dtype);
    if (static_cast<std::size_t>(array.itemsize()) != item)
        throw py::value_error(name + " must have items of " + std::to_string(item) +
                              " bytes for this spec, got " + std::string(py::str(array.dtype())));
    const auto bytes = static_cast<std::size_t>(array.nbytes());
    const std::size_t image = spec.image_bytes();
    const bool fits = images > 0 ? bytes == images * image : bytes > 0 && bytes % image == 0;
    if (!fits)
        throw py::value_error(name + " must have " +
                              (images > 0 ? std::to_string(images) + " x " : "a multiple of ") +
                              std::to_string(image) + " bytes, got " + std::to_string(bytes));
    if (found != nullptr) *found = bytes / image;
    return const_cast<py::array&>(array).mutable_data();
}

std::string file_name(const py::handle& path) {
    if (py::isinstance<py::bytes>(path)) return py::cast<std::string>(path);
    if (!py::isinstance<py::str>(path))
        throw py::type_error("a path must be str or bytes, got " +
                             std::string(py::str(py::type::handle_of(path))));
    PyObject* const encoded = PyUnicode_EncodeFSDefault(path.ptr());
    if (encoded == nullptr) throw py::error_already_set();
    return py::cast<std::string>(py::reinterpret_steal<py::bytes>(encoded));
}

std::shared_ptr<const SeekIndex> index_of(const py::object& index) {
    if (index.is_none()) return nullptr;
    if (!py::isinstance<PySeekIndex>(index)) throw py::type_error("index must be a SeekIndex or None");
    return py::cast<const PySeekIndex&>(index).index;
}

ImageDecoder& thread_decoder() {
    thread_local ImageDecoder decoder;
    return decoder;
}

NamedTuple::NamedTuple(py::module_& module, const char* name, const char* fields, const char* doc)
    : type_(py::module_::import("collections")
                .attr("namedtuple")(name, fields, py::arg("module") = module.attr("__name__"))) {
    type_.attr("__doc__") = doc;
    module.attr(name) = type_;
}

py::object NamedTuple::made_of(const py::tuple& values) const {
    PyObject* const made = PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(type_.ptr()),
                                               py::make_tuple(values).ptr(), nullptr);
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
}

}  // namespace hpcai500::bindings
