#include <pybind11/numpy.h>

#include <cstdint>

#include "bindings.h"
#include "device_array.h"
#include "image_arguments.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

void convert(const py::array& images, const py::array& out, const py::object& mean, const py::object& std,
             int threads) {
    const ImageConversion conversion =
        image_conversion(view_of(images, "images"), view_of(out, "out"), mean, std);
    void* const memory = const_cast<py::array&>(out).mutable_data();
    check_apart(conversion, images.data(), memory);
    const ReleasedGil released;
    convert_images(conversion, images.data(), memory, threads);
}

void convert_on_device(const py::object& images_object, const py::object& out_object, const py::object& mean,
                       const py::object& std, int device, std::uintptr_t stream) {
    const DeviceArray images = device_array(images_object, "images", device);
    const DeviceArray out = device_array(out_object, "out", device);
    const ImageConversion conversion = image_conversion(images.view, out.view, mean, std);
    void* const memory = writable(out);
    check_apart(conversion, images.data, memory);
    const ReleasedGil released;
    convert_images_cuda(conversion, images.data, memory, device, reinterpret_cast<void*>(stream));
}

}  // namespace

void register_images(py::module_& module) {
    module.def("convert_images", &convert, py::arg("images"), py::arg("out"), py::kw_only(),
               py::arg("mean") = py::none(), py::arg("std") = py::none(), py::arg("threads"),
               "Writes the images, normalised by channel, in the type and layout of `out`.");
    module.def("convert_images_cuda", &convert_on_device, py::arg("images"), py::arg("out"), py::kw_only(),
               py::arg("mean") = py::none(), py::arg("std") = py::none(), py::arg("device"),
               py::arg("stream"), "convert_images on a device. Does not wait.");
}

}  // namespace hpcai500::bindings
