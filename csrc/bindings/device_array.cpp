#include "device_array.h"

#include <cctype>
#include <cstdint>

#include "array_shapes.h"
#include "dlpack_array.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const py::handle& received) {
    throw py::value_error(name + ": __cuda_array_interface__ must have " + expected + ", got " +
                          std::string(py::str(py::repr(received))));
}

py::object entry(const py::dict& interface, const std::string& name, const char* key) {
    if (!interface.contains(key)) refuse(name, std::string("the key '") + key + "'", interface);
    return interface[key];
}

// "<f4" -> type f4 and 4 bytes an item.
std::int64_t read_type(const py::object& typestr, ArrayView& view) {
    const std::string text = py::isinstance<py::str>(typestr) ? py::cast<std::string>(typestr) : "";
    const bool known_order = text.size() == 3 && (text[0] == '<' || text[0] == '|');
    const std::int64_t bytes =
        known_order && std::isdigit(static_cast<unsigned char>(text[2])) ? text[2] - '0' : 0;
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
        refuse(view.name, "a typestr such as '<f4', little-endian", typestr);
    view.type = text.substr(1);
    return bytes;
}

std::vector<std::int64_t> whole_numbers(const std::string& name, const char* key, const py::object& values) {
    std::vector<std::int64_t> result;
    if (!py::isinstance<py::tuple>(values)) refuse(name, std::string("a tuple as ") + key, values);
    for (const py::handle value : values) {
        if (!py::isinstance<py::int_>(value)) refuse(name, std::string("whole numbers in ") + key, values);
        const long long number = PyLong_AsLongLong(value.ptr());
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        result.push_back(number);
    }
    return result;
}

void read_strides(const py::dict& interface, std::int64_t item, ArrayView& view) {
    const py::object strides = interface.contains("strides") ? py::object(interface["strides"]) : py::none();
    if (strides.is_none()) {
        view.strides = contiguous_strides(view.shape);
        return;
    }
    view.strides = whole_numbers(view.name, "strides", strides);
    if (view.strides.size() != view.shape.size()) refuse(view.name, "as many strides as axes", strides);
    for (std::int64_t& stride : view.strides) stride = stride % item == 0 ? stride / item : no_stride;
}

py::dict interface_of(const py::handle& object, const std::string& name) {
    // Once: torch makes it anew for each that asks.
    const auto described =
        py::reinterpret_steal<py::object>(PyObject_GetAttrString(object.ptr(), "__cuda_array_interface__"));
    if (!described) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
        PyErr_Clear();
        throw py::type_error(name +
                             " must be an array in CUDA memory (that DLPack's table of functions shows, or "
                             "with __cuda_array_interface__), got " +
                             std::string(py::str(py::type::handle_of(object))));
    }
    if (!py::isinstance<py::dict>(described)) refuse(name, "the form of a dictionary", described);
    return py::reinterpret_borrow<py::dict>(described);
}

void read_memory(const py::dict& interface, std::int64_t item, DeviceArray& array) {
    const std::string& name = array.view.name;
    const py::object data = entry(interface, name, "data");
    if (!py::isinstance<py::tuple>(data) || py::len(data) != 2 ||
        !py::isinstance<py::int_>(py::tuple(data)[0]))
        refuse(name, "data (pointer, read-only)", data);
    const auto pointer = PyLong_AsUnsignedLongLong(py::tuple(data)[0].ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (pointer == 0 && !is_empty(array.view.shape)) refuse(name, "a pointer that is not null", data);
    if (pointer % static_cast<unsigned long long>(item) != 0)
        refuse(name, "a pointer aligned to its items", data);
    array.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
    array.read_only = py::cast<bool>(py::tuple(data)[1]);
}

DeviceArray described_array(const py::handle& object, const std::string& name) {
    const py::dict interface = interface_of(object, name);
    DeviceArray array{{name, "", {}, {}}, nullptr, false};
    const std::int64_t item = read_type(entry(interface, name, "typestr"), array.view);
    array.view.shape = whole_numbers(name, "shape", entry(interface, name, "shape"));
    if (!is_countable(array.view.shape))
        refuse(name, "a shape of at most 2**48 elements", interface["shape"]);
    read_strides(interface, item, array.view);
    read_memory(interface, item, array);
    return array;
}

}  // namespace

DeviceArray device_array(const py::handle& object, const std::string& name, int device) {
    const ArrayName argument{name.c_str()};
    DlpackTensor shown;
    if (!show_by_dlpack(object, argument, shown)) return described_array(object, name);
    check_on_device(shown, argument, device);
    DeviceArray array{{name, "", {}, {}}, nullptr, false};
    array.data = read_dlpack(shown, array.view);
    return array;
}

void check_on_device(const DlpackTensor& shown, const ArrayName& name, int device) {
    if (shown.device_type != dlpack_device::cuda && shown.device_type != dlpack_device::cuda_managed)
        throw py::type_error(name.text() + " must be an array in CUDA memory, got one " + place_text(shown));
    if (device != any_device && device != shown.device_id)
        throw py::value_error(name.text() + " must be on CUDA device " + std::to_string(device) +
                              ", got one " + place_text(shown));
}

void* writable(const DeviceArray& array) {
    if (array.read_only) throw py::value_error(array.view.name + " must be writable");
    return array.data;
}

}  // namespace hpcai500::bindings
