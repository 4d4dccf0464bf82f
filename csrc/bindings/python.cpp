#include "python.h"

namespace py = pybind11;

namespace hpcai500::bindings {

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

PyObject* make_error(py::module_& module, const char* name, const char* doc) {
    const std::string full_name = std::string("hpcai500._core.") + name;
    PyObject* const type = PyErr_NewExceptionWithDoc(full_name.c_str(), doc, PyExc_ValueError, nullptr);
    if (type == nullptr) throw py::error_already_set();
    module.attr(name) = py::handle(type);
    return type;
}

std::string text_of(const py::handle& value) {
    return py::str(value);
}

std::string class_of(const py::handle& value) {
    return text_of(py::type::handle_of(value));
}

std::string file_name(const py::handle& path) {
    if (py::isinstance<py::bytes>(path)) return py::cast<std::string>(path);
    if (!py::isinstance<py::str>(path))
        throw py::type_error("a path must be str or bytes, got " + class_of(path));
    PyObject* const encoded = PyUnicode_EncodeFSDefault(path.ptr());
    if (encoded == nullptr) throw py::error_already_set();
    return py::cast<std::string>(py::reinterpret_steal<py::bytes>(encoded));
}

}  // namespace hpcai500::bindings
