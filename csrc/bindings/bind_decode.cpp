#include "bindings.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

// JpegError is a ValueError that also says which kind of failure it is.
void register_error(py::module_& module) {
    PyObject* const type =
        PyErr_NewExceptionWithDoc("hpcai500._core.JpegError",
                                  "An image that cannot be decoded. `kind` is 'unsupported' (another decoder "
                                  "may read it), 'truncated', "
                                  "'unreadable' or 'corrupt'.",
                                  PyExc_ValueError, nullptr);
    if (type == nullptr) throw py::error_already_set();
    // Lives as long as the process: the translator below may run until the interpreter ends.
    static PyObject* jpeg_error = type;
    module.attr("JpegError") = py::handle(type);
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const DecodeError& error) {
            const py::object instance = py::reinterpret_steal<py::object>(PyObject_CallFunction(
                jpeg_error, "s", (std::string(name(error.kind())) + ": " + error.what()).c_str()));
            if (!instance) return;
            instance.attr("kind") = name(error.kind());
            PyErr_SetObject(jpeg_error, instance.ptr());
        }
    });
}

void crop_pixels(const py::array_t<std::uint8_t>& pixels, const DecodeSpec& spec, const py::array& out,
                 const py::int_& seed, const py::int_& epoch, const py::int_& sample) {
    const bool image = pixels.ndim() == 3 && pixels.shape(2) == 3 && pixels.size() > 0;
    if (!image || (pixels.flags() & py::array::c_style) == 0)
        throw py::value_error(
            "pixels must be a C-contiguous uint8 array of shape (height, width, 3), got shape " +
            std::string(py::str(pixels.attr("shape"))));
    if (std::int64_t{pixels.shape(0)} * pixels.shape(1) > JpegReader::most_pixels)
        throw py::value_error("pixels must be at most " + std::to_string(JpegReader::most_pixels) + ", got " +
                              std::string(py::str(pixels.attr("shape"))));
    const RgbPixels source{pixels.data(), static_cast<int>(pixels.shape(1)),
                           static_cast<int>(pixels.shape(0))};
    void* const memory = output_memory(out, spec, "out", 1);
    const SampleKey key = sample_key(seed, epoch, sample);
    const ReleasedGil released;
    thread_decoder().crop_pixels(source, spec, key, memory);
}

int decode_crop(const py::object& data, const DecodeSpec& spec, const py::array& out, const py::int_& seed,
                const py::int_& epoch, const py::int_& sample, const py::object& index) {
    const BytesView view(data);
    const auto points = index_of(index);
    void* const memory = output_memory(out, spec, "out", 1);
    const SampleKey key = sample_key(seed, epoch, sample);
    const ReleasedGil released;
    return thread_decoder().decode_crop(view.bytes(), spec, key, memory, points.get());
}

int decode_box(const py::object& data, const DecodeSpec& spec, const py::array& out, double x, double y,
               double width, double height, bool flip, const py::object& index) {
    const BytesView view(data);
    const auto points = index_of(index);
    void* const memory = output_memory(out, spec, "out", 1);
    const ReleasedGil released;
    return thread_decoder().decode_box(view.bytes(), spec, {x, y, width, height, flip}, memory, points.get());
}

}  // namespace

void register_decode(py::module_& module) {
    register_error(module);
    const NamedTuple info_type(module, "JpegInfo",
                               "width height components colour_space progressive sampling",
                               "What a JPEG's header says.");
    module.def(
        "probe_jpeg",
        [info_type](const py::object& data) {
            const BytesView view(data);
            const JpegHeader header = thread_decoder().probe(view.bytes());
            return info_type(header.width, header.height, header.components, header.colour_space,
                             header.progressive, header.sampling);
        },
        py::arg("data"), "Reads the header of a JPEG; raises JpegError (a ValueError).");
    module.def(
        "check_jpeg",
        [](const py::object& data) {
            const BytesView view(data);
            ImageDecoder::Checked checked{};
            {
                const ReleasedGil released;
                checked = thread_decoder().check(view.bytes());
            }
            return py::make_tuple(checked.width, checked.height, checked.warnings);
        },
        py::arg("data"),
        "Decodes all of a JPEG and drops the pixels: (width, height, warnings) or JpegError.");
    module.def(
        "decode_crop", &decode_crop, py::arg("data"), py::arg("spec"), py::arg("out"), py::kw_only(),
        py::arg("seed"), py::arg("epoch"), py::arg("sample"), py::arg("index") = py::none(),
        "Makes one sample's image in `out`; returns the number of libjpeg's warnings; raises JpegError.");
    module.def("decode_box", &decode_box, py::arg("data"), py::arg("spec"), py::arg("out"), py::kw_only(),
               py::arg("x"), py::arg("y"), py::arg("width"), py::arg("height"), py::arg("flip"),
               py::arg("index") = py::none(), "decode_crop for a box of the caller's, in source pixels.");
    module.def(
        "last_seek",
        [] {
            constexpr const char* names[] = {"used", "without", "unknown", "false"};
            return names[static_cast<int>(thread_decoder().last_seek())];
        },
        "What became of the index of this thread's last decode_crop or decode_box.");
    module.def("crop_pixels", &crop_pixels, py::arg("pixels").noconvert(), py::arg("spec"), py::arg("out"),
               py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("sample"),
               "decode_crop for pixels (height, width, 3) that another decoder made.");
}

}  // namespace hpcai500::bindings
