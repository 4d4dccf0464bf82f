#include "dlpack_exchange.h"

#include <pybind11/gil_safe_call_once.h>

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

constexpr const char* capsule_name = "dlpack_exchange_api";
constexpr std::uint32_t known_major = 1;
// Of a chain that never ends.
constexpr int most_versions = 16;

// A string that is made once: a call looks it up for each of its hundreds of tensors.
PyObject* attribute() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> name;
    return name
        .call_once_and_store_result([] {
            return py::reinterpret_steal<py::object>(PyUnicode_InternFromString("__dlpack_c_exchange_api__"));
        })
        .get_stored()
        .ptr();
}

const DlpackExchange* of_known_version(const void* table) {
    const auto* header = static_cast<const DlpackHeader*>(table);
    for (int step = 0; header != nullptr && step < most_versions; ++step, header = header->previous)
        if (header->major == known_major) return reinterpret_cast<const DlpackExchange*>(header);
    return nullptr;
}

// Looked up each time: torch's takes 20 ns, and a type whose table was kept could be gone, another in its
// place.
const DlpackExchange* table_of(PyTypeObject* type) {
    const auto capsule =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), attribute()));
    if (!capsule) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
        PyErr_Clear();
        return nullptr;
    }
    // The table outlives the capsule: it must live as long as the process.
    if (PyCapsule_IsValid(capsule.ptr(), capsule_name) == 0) return nullptr;
    return of_known_version(PyCapsule_GetPointer(capsule.ptr(), capsule_name));
}

[[noreturn]] void refuse(const py::handle& object, const ArrayName& name) {
    if (PyErr_Occurred() == nullptr)
        PyErr_SetString(PyExc_RuntimeError, "its DLPack function does not say why");
    py::error_already_set error;
    // An interrupt is no refusal.
    if (!error.matches(PyExc_Exception)) throw error;
    const std::string reason = py::str(error.value());
    const std::string message = name.text() + " is a " + Py_TYPE(object.ptr())->tp_name +
                                " that cannot show its memory: " + reason.substr(0, reason.find('\n'));
    py::raise_from(error, PyExc_TypeError, message.c_str());
    throw py::error_already_set();
}

}  // namespace

std::string ArrayName::text() const {
    return index == none_of_several ? name : std::string(name) + "[" + std::to_string(index) + "]";
}

bool show_by_dlpack(const py::handle& object, const ArrayName& name, DlpackTensor& shown) {
    const DlpackExchange* const table = table_of(Py_TYPE(object.ptr()));
    if (table == nullptr || table->show == nullptr) return false;
    shown = {};
    if (table->show(object.ptr(), &shown) != 0) refuse(object, name);
    return true;
}

}  // namespace hpcai500::bindings
