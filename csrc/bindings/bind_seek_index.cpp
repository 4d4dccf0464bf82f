#include <memory>

#include "bindings.h"
#include "core/jpeg/seek_index.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

py::bytes as_bytes(std::span<const std::uint8_t> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::object seek_points(const py::object& data) {
    const BytesView view(data);
    std::optional<std::vector<std::uint8_t>> points;
    {
        const ReleasedGil released;
        points = thread_decoder().seek_points(view.bytes());
    }
    return points ? py::object(as_bytes(*points)) : py::none();
}

py::tuple key_of(const py::object& data) {
    const BytesView view(data);
    SeekKey key{};
    {
        const ReleasedGil released;
        key = seek_key(view.bytes());
    }
    return py::make_tuple(key.checksum, key.bytes);
}

// None where the index does not know the file; no bytes where it knows that there are no points.
py::object find(const PySeekIndex& self, const py::object& data) {
    const BytesView view(data);
    GrowBuffer<std::uint8_t> room;
    baseline::SeekPoints points;
    SeekIndex::Answer answer{};
    {
        const ReleasedGil released;
        answer = self.index->find(seek_key(view.bytes()), room, points);
    }
    if (answer == SeekIndex::Answer::unknown) return py::none();
    if (answer == SeekIndex::Answer::damaged)
        throw py::value_error("what the index says of this file is damaged");
    return as_bytes(points.packed());
}

void add(SeekIndexWriter& writer, std::uint32_t checksum, std::uint32_t bytes, const py::object& points) {
    if (points.is_none()) return writer.add({checksum, bytes}, {});
    const BytesView view(points);
    // The interpreter's lock is the writer's, too.
    writer.add({checksum, bytes}, view.bytes());
}

}  // namespace

void register_seek_index(py::module_& module) {
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const SeekIndexError& error) {
            py::set_error(PyExc_ValueError, error.what());
        }
    });
    module.def("seek_points", &seek_points, py::arg("data"),
               "Packed seek points of a JPEG; b'' where none pays, None where libjpeg-turbo decodes it.");
    module.def("seek_key", &key_of, py::arg("data"), "What an index knows a file by: (CRC-32, bytes).");
    py::class_<PySeekIndex>(module, "SeekIndex",
                            "An index of seek points, as `hpcai500 data index` writes it.")
        .def(py::init([](const py::object& path) {
                 const std::string name = file_name(path);
                 const ReleasedGil released;
                 return PySeekIndex{open_seek_index(name)};
             }),
             py::arg("path"))
        .def("__len__", [](const PySeekIndex& self) { return self.index->files(); })
        .def("find", &find, py::arg("data"), "Packed points of a file; None where it is unknown.");
    py::class_<SeekIndexWriter>(module, "SeekIndexWriter", "Writes an index of seek points.")
        .def(py::init(
                 [](const py::object& path) { return std::make_unique<SeekIndexWriter>(file_name(path)); }),
             py::arg("path"))
        .def("add", &add, py::arg("checksum"), py::arg("size"), py::arg("points"), "Adds a file.")
        .def("finish", &SeekIndexWriter::finish, py::call_guard<ReleasedGil>(),
             "Writes what makes it an index; returns its bytes.");
}

}  // namespace hpcai500::bindings
