#include <pybind11/stl.h>

#include "bindings.h"
#include "core/jpeg/spec.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

template <class Value>
struct Choice {
    const char* name;
    Value value;
};

constexpr Choice<CropMode> modes[] = {{"random", CropMode::random}, {"centre", CropMode::centre}};
constexpr Choice<DType> dtypes[] = {{"float32", DType::float32},
                                    {"float16", DType::float16},
                                    {"bfloat16", DType::bfloat16},
                                    {"uint8", DType::uint8}};
constexpr Choice<Layout> layouts[] = {{"nchw", Layout::nchw}, {"nhwc", Layout::nhwc}};
constexpr Choice<JpegDecoder> decoders[] = {{"own", JpegDecoder::own},
                                            {"libjpeg-turbo", JpegDecoder::libjpeg_turbo}};

template <class Value, std::size_t count>
Value parse(const Choice<Value> (&choices)[count], const char* what, const std::string& name) {
    std::string allowed;
    for (const auto& choice : choices) {
        if (name == choice.name) return choice.value;
        allowed += (allowed.empty() ? "" : ", ") + std::string(choice.name);
    }
    throw py::value_error(std::string(what) + " must be one of " + allowed + "; got '" + name + "'");
}

template <class Value, std::size_t count>
const char* name_of(const Choice<Value> (&choices)[count], Value value) {
    for (const auto& choice : choices)
        if (choice.value == value) return choice.name;
    return "";
}

py::tuple pair(const std::array<double, 2>& values) {
    return py::make_tuple(values[0], values[1]);
}
py::tuple triple(const std::array<double, 3>& values) {
    return py::make_tuple(values[0], values[1], values[2]);
}

DecodeSpec make_spec(int size, const std::string& mode, std::array<double, 2> area,
                     std::array<double, 2> ratio, double flip_probability, int resize_shorter,
                     std::array<double, 3> mean, std::array<double, 3> std, const std::string& dtype,
                     const std::string& layout, bool dct_scaling, const std::string& decoder) {
    const DecodeSpec spec{size,
                          parse(modes, "mode", mode),
                          area,
                          ratio,
                          flip_probability,
                          resize_shorter,
                          mean,
                          std,
                          parse(dtypes, "dtype", dtype),
                          parse(layouts, "layout", layout),
                          dct_scaling,
                          parse(decoders, "decoder", decoder)};
    validate(spec);
    return spec;
}

py::dict settings(const DecodeSpec& spec) {
    py::dict result;
    result["size"] = spec.size;
    result["mode"] = name_of(modes, spec.mode);
    result["area"] = pair(spec.area);
    result["ratio"] = pair(spec.ratio);
    result["flip_probability"] = spec.flip_probability;
    result["resize_shorter"] = spec.resize_shorter;
    result["mean"] = triple(spec.mean);
    result["std"] = triple(spec.std);
    result["dtype"] = name_of(dtypes, spec.dtype);
    result["layout"] = name_of(layouts, spec.layout);
    result["dct_scaling"] = spec.dct_scaling;
    result["decoder"] = name_of(decoders, spec.decoder);
    return result;
}

std::string represent(const DecodeSpec& spec) {
    std::string text;
    for (const auto& [key, value] : settings(spec))
        text += (text.empty() ? "" : ", ") + std::string(py::str(key)) + "=" + std::string(py::repr(value));
    return "DecodeSpec(" + text + ")";
}

py::tuple image_shape(const DecodeSpec& spec) {
    if (spec.layout == Layout::nchw) return py::make_tuple(3, spec.size, spec.size);
    return py::make_tuple(spec.size, spec.size, 3);
}

}  // namespace

void register_spec(py::module_& module) {
    const DecodeSpec defaults;
    py::class_<DecodeSpec>(module, "DecodeSpec",
                           "What an image becomes: crop rule, output size, type and layout. Immutable.")
        .def(py::init(&make_spec), py::kw_only(), py::arg("size"), py::arg("mode") = "random",
             py::arg("area") = pair(defaults.area), py::arg("ratio") = pair(defaults.ratio),
             py::arg("flip_probability") = defaults.flip_probability,
             py::arg("resize_shorter") = defaults.resize_shorter, py::arg("mean") = triple(defaults.mean),
             py::arg("std") = triple(defaults.std), py::arg("dtype") = "float32", py::arg("layout") = "nchw",
             py::arg("dct_scaling") = false, py::arg("decoder") = "own")
        .def_readonly("size", &DecodeSpec::size)
        .def_property_readonly("mode", [](const DecodeSpec& s) { return name_of(modes, s.mode); })
        .def_property_readonly("area", [](const DecodeSpec& s) { return pair(s.area); })
        .def_property_readonly("ratio", [](const DecodeSpec& s) { return pair(s.ratio); })
        .def_readonly("flip_probability", &DecodeSpec::flip_probability)
        .def_readonly("resize_shorter", &DecodeSpec::resize_shorter)
        .def_property_readonly("mean", [](const DecodeSpec& s) { return triple(s.mean); })
        .def_property_readonly("std", [](const DecodeSpec& s) { return triple(s.std); })
        .def_property_readonly("dtype", [](const DecodeSpec& s) { return name_of(dtypes, s.dtype); })
        .def_property_readonly("layout", [](const DecodeSpec& s) { return name_of(layouts, s.layout); })
        .def_readonly("dct_scaling", &DecodeSpec::dct_scaling)
        .def_property_readonly("decoder", [](const DecodeSpec& s) { return name_of(decoders, s.decoder); })
        .def_property_readonly("shape", &image_shape)
        .def_property_readonly("itemsize", [](const DecodeSpec& s) { return item_size(s.dtype); })
        .def_property_readonly("image_bytes", &DecodeSpec::image_bytes)
        .def("__repr__", &represent);

    const NamedTuple box_type(module, "CropBox", "x y width height flip",
                              "A rectangle in source pixels, and whether to flip.");
    module.def(
        "crop_box",
        [box_type](const DecodeSpec& spec, int width, int height, const py::int_& seed, const py::int_& epoch,
                   const py::int_& sample) {
            if (width < 1 || height < 1)
                throw py::value_error("width and height must be at least 1, got " + std::to_string(width) +
                                      " x " + std::to_string(height));
            const CropBox box = crop_box(spec, width, height, sample_key(seed, epoch, sample));
            return box_type(box.x, box.y, box.width, box.height, box.flip);
        },
        py::arg("spec"), py::arg("width"), py::arg("height"), py::kw_only(), py::arg("seed"),
        py::arg("epoch"), py::arg("sample"),
        "The crop that a sample gets: a pure function of its arguments.");
}

}  // namespace hpcai500::bindings
