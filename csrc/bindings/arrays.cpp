#include "arrays.h"

#include <pybind11/gil_safe_call_once.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "dlpack.h"
#include "python.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t most_elements = std::int64_t{1} << 48;

// Whether lengths are 0 or more and their product most_elements at most: sums and products of sizes then stay
// far from where 64 bits end.
bool is_countable(const Lengths& shape) {
    std::int64_t left = most_elements;
    for (const std::int64_t length : shape) {
        if (length < 0 || length > left) return false;
        left /= std::max<std::int64_t>(length, 1);
    }
    return true;
}

bool is_empty(const ArrayView& view) {
    return std::find(view.shape.begin(), view.shape.end(), 0) != view.shape.end();
}

// Those of an array whose last axis is the fastest.
Lengths contiguous_strides(const Lengths& shape) {
    Lengths strides(shape.size(), 1);
    for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
    return strides;
}

// Whether walking the axes in this order, the last one fastest, visits memory without a gap.
bool is_packed(const ArrayView& view, const std::vector<std::size_t>& order) {
    std::int64_t expected = 1;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
        // The stride of an axis of length 1 means nothing.
        if (view.shape[*axis] != 1 && view.strides[*axis] != expected) return false;
        expected *= view.shape[*axis];
    }
    return true;
}

bool is_contiguous(const ArrayView& view) {
    std::vector<std::size_t> order(view.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    return is_empty(view) || is_packed(view, order);
}

bool is_aligned(const py::array& array) {
    return (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
}

ArrayView numpy_array(const py::array& array, const std::string& name) {
    const py::dtype type = array.dtype();
    ArrayView view{name, type.kind() + std::to_string(array.itemsize()), {}, {}};
    if (type.byteorder() == '>') view.type.insert(0, ">");
    // An item may have no bytes (NumPy's V0).
    const py::ssize_t item = std::max<py::ssize_t>(array.itemsize(), 1);
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
        view.shape.push_back(array.shape(axis));
        view.strides.push_back(array.strides(axis) % item == 0 ? array.strides(axis) / item : no_stride);
    }
    view.data = const_cast<void*>(array.data());
    view.read_only = !array.writeable();
    return view;
}

ArrayView aligned_array(const py::array& array, const std::string& name) {
    if (!is_aligned(array)) throw py::value_error(name + " must be aligned to its items");
    return numpy_array(array, name);
}

// A string that is made once: a call looks it up for each of its hundreds of tensors.
PyObject* dlpack_attribute() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> name;
    return name
        .call_once_and_store_result([] {
            return py::reinterpret_steal<py::object>(PyUnicode_InternFromString("__dlpack_c_exchange_api__"));
        })
        .get_stored()
        .ptr();
}

const DlpackExchange* of_known_version(const void* table) {
    constexpr std::uint32_t known_major = 1;
    // Of a chain that never ends.
    constexpr int most_versions = 16;
    const auto* header = static_cast<const DlpackHeader*>(table);
    for (int step = 0; header != nullptr && step < most_versions; ++step, header = header->previous)
        if (header->major == known_major) return reinterpret_cast<const DlpackExchange*>(header);
    return nullptr;
}

// Looked up each time: torch's takes 20 ns, and a type whose table was kept could be gone, another in its
// place.
const DlpackExchange* dlpack_table(PyTypeObject* type) {
    constexpr const char* capsule_name = "dlpack_exchange_api";
    const auto capsule = py::reinterpret_steal<py::object>(
        PyObject_GetAttr(reinterpret_cast<PyObject*>(type), dlpack_attribute()));
    if (!capsule) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
        PyErr_Clear();
        return nullptr;
    }
    // The table outlives the capsule: it must live as long as the process.
    if (PyCapsule_IsValid(capsule.ptr(), capsule_name) == 0) return nullptr;
    return of_known_version(PyCapsule_GetPointer(capsule.ptr(), capsule_name));
}

[[noreturn]] void refuse_hidden(const py::handle& object, const ArrayName& name) {
    if (PyErr_Occurred() == nullptr)
        PyErr_SetString(PyExc_RuntimeError, "its DLPack function does not say why");
    py::error_already_set error;
    // An interrupt is no refusal.
    if (!error.matches(PyExc_Exception)) throw error;
    const std::string reason = text_of(error.value());
    const std::string message = name.text() + " is a " + Py_TYPE(object.ptr())->tp_name +
                                " that cannot show its memory: " + reason.substr(0, reason.find('\n'));
    py::raise_from(error, PyExc_TypeError, message.c_str());
    throw py::error_already_set();
}

// False where the type has no table of a version known here.
bool show_by_dlpack(const py::handle& object, const ArrayName& name, DlpackTensor& shown) {
    const DlpackExchange* const table = dlpack_table(Py_TYPE(object.ptr()));
    if (table == nullptr || table->show == nullptr) return false;
    shown = {};
    if (table->show(object.ptr(), &shown) != 0) refuse_hidden(object, name);
    return true;
}

// "in the processor's memory", "on CUDA device 1"
std::string place_text(const DlpackTensor& shown) {
    switch (shown.device_type) {
        case dlpack_device::processor:
        case dlpack_device::cuda_host:
            return "in the processor's memory";
        case dlpack_device::cuda:
        case dlpack_device::cuda_managed:
            return "on CUDA device " + std::to_string(shown.device_id);
        default:
            return "on a device of DLPack's type " + std::to_string(shown.device_type);
    }
}

void expect_place(const DlpackTensor& shown, const ArrayName& name, const Place& place) {
    const bool here =
        shown.device_type == dlpack_device::processor || shown.device_type == dlpack_device::cuda_host;
    const bool there =
        shown.device_type == dlpack_device::cuda || shown.device_type == dlpack_device::cuda_managed;
    if (!(place.kind == Place::processor ? here : there))
        throw py::type_error(
            name.text() + " must be " +
            (place.kind == Place::processor ? "in the processor's memory" : "an array in CUDA memory") +
            ", got one " + place_text(shown));
    if (place.kind == Place::one_device && place.device != shown.device_id)
        throw py::value_error(name.text() + " must be on CUDA device " + std::to_string(place.device) +
                              ", got one " + place_text(shown));
}

[[noreturn]] void refuse_shown(const std::string& name, const std::string& expected,
                               const std::string& received) {
    throw py::value_error(name + ": DLPack must show " + expected + ", got " + received);
}

// NumPy's letter of each code; a bfloat16's is that of its bits.
char letter_of(const DlpackType& type) {
    constexpr char letters[] = "iuf?ucb";
    const bool is_known = type.code < sizeof letters - 1 && (type.code != dlpack_bfloat || type.bits == 16);
    return is_known ? letters[type.code] : '?';
}

void read_shown_axes(const DlpackTensor& shown, ArrayView& view) {
    // As many as NumPy has.
    constexpr std::int32_t most_axes = 64;
    if (shown.axes < 0 || shown.axes > most_axes)
        refuse_shown(view.name, "at most " + std::to_string(most_axes) + " axes", std::to_string(shown.axes));
    if (shown.axes > 0 && shown.shape == nullptr) refuse_shown(view.name, "a shape", "none");
    view.shape.assign(shown.shape, shown.shape + shown.axes);
    if (!is_countable(view.shape)) refuse_shown(view.name, "at most 2**48 elements", view.shape_text());
    if (shown.strides == nullptr)
        view.strides = contiguous_strides(view.shape);
    else
        view.strides.assign(shown.strides, shown.strides + shown.axes);
}

std::uintptr_t address_of(const DlpackTensor& shown) {
    return reinterpret_cast<std::uintptr_t>(shown.data) + static_cast<std::uintptr_t>(shown.byte_offset);
}

ArrayView shown_array(const DlpackTensor& shown, const std::string& name) {
    const char letter = letter_of(shown.type);
    const int bits = shown.type.bits;
    if (letter == '?' || shown.type.lanes != 1 || (bits != 8 && bits != 16 && bits != 32 && bits != 64))
        refuse_shown(name, "items of 1, 2, 4 or 8 bytes",
                     "type code " + std::to_string(shown.type.code) + ", " + std::to_string(bits) +
                         " bits, " + std::to_string(shown.type.lanes) + " lanes");
    ArrayView view{name, letter + std::to_string(bits / 8), {}, {}};
    read_shown_axes(shown, view);
    const std::uintptr_t address = address_of(shown);
    if (shown.data == nullptr && !is_empty(view)) refuse_shown(name, "a pointer that is not null", "null");
    if (address % static_cast<std::uintptr_t>(bits / 8) != 0)
        refuse_shown(name, "a pointer aligned to its items", std::to_string(address));
    view.data = reinterpret_cast<void*>(address);
    return view;
}

// The last axis that has this stride and more than one element; -1 where none has.
std::int32_t axis_of_stride(const DlpackTensor& shown, std::int64_t stride) {
    std::int32_t axis = shown.axes - 1;
    while (axis >= 0 && (shown.shape[axis] == 1 || shown.strides[axis] != stride)) --axis;
    return axis;
}

// Nothing where the tensor is not float32 or not dense, is empty or is wrong.
std::optional<DenseFloats> plain_floats(const DlpackTensor& shown) {
    const std::uintptr_t address = address_of(shown);
    const bool is_float = shown.type.code == dlpack_real && shown.type.bits == 32 && shown.type.lanes == 1;
    if (!is_float || shown.data == nullptr || address % sizeof(float) != 0) return std::nullopt;
    if (shown.axes < 0 || (shown.axes > 0 && (shown.shape == nullptr || shown.strides == nullptr)))
        return std::nullopt;
    std::int64_t count = 1;
    for (std::int32_t axis = 0; axis < shown.axes; ++axis) {
        if (shown.shape[axis] < 1 || shown.shape[axis] > most_elements / count) return std::nullopt;
        count *= shown.shape[axis];
    }
    // Strides of a dense array grow from axis to axis, so that no axis is found twice.
    for (std::int64_t packed = 1; packed != count;) {
        const std::int32_t axis = axis_of_stride(shown, packed);
        if (axis < 0) return std::nullopt;
        packed *= shown.shape[axis];
    }
    return DenseFloats{reinterpret_cast<float*>(address), count};
}

[[noreturn]] void refuse_described(const std::string& name, const std::string& expected,
                                   const py::handle& received) {
    throw py::value_error(name + ": __cuda_array_interface__ must have " + expected + ", got " +
                          text_of(py::repr(received)));
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
                             class_of(object));
    }
    if (!py::isinstance<py::dict>(described)) refuse_described(name, "the form of a dictionary", described);
    return py::reinterpret_borrow<py::dict>(described);
}

py::object entry(const py::dict& interface, const std::string& name, const char* key) {
    if (!interface.contains(key)) refuse_described(name, std::string("the key '") + key + "'", interface);
    return interface[key];
}

Lengths whole_numbers(const std::string& name, const char* key, const py::object& values) {
    Lengths result;
    if (!py::isinstance<py::tuple>(values)) refuse_described(name, std::string("a tuple as ") + key, values);
    for (const py::handle value : values) {
        if (!py::isinstance<py::int_>(value))
            refuse_described(name, std::string("whole numbers in ") + key, values);
        const long long number = PyLong_AsLongLong(value.ptr());
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        result.push_back(number);
    }
    return result;
}

// "<f4" -> "f4"
std::string described_type(const std::string& name, const py::object& typestr) {
    const std::string text = py::isinstance<py::str>(typestr) ? py::cast<std::string>(typestr) : "";
    const bool is_known = text.size() == 3 && (text[0] == '<' || text[0] == '|') &&
                          std::string("1248").find(text[2]) != std::string::npos;
    if (!is_known) refuse_described(name, "a typestr such as '<f4', little-endian", typestr);
    return text.substr(1);
}

void read_described_axes(const py::dict& interface, std::int64_t item, ArrayView& view) {
    view.shape = whole_numbers(view.name, "shape", entry(interface, view.name, "shape"));
    if (!is_countable(view.shape))
        refuse_described(view.name, "a shape of at most 2**48 elements", interface["shape"]);
    const py::object strides = interface.contains("strides") ? py::object(interface["strides"]) : py::none();
    if (strides.is_none()) {
        view.strides = contiguous_strides(view.shape);
        return;
    }
    view.strides = whole_numbers(view.name, "strides", strides);
    if (view.strides.size() != view.shape.size())
        refuse_described(view.name, "as many strides as axes", strides);
    for (std::int64_t& stride : view.strides) stride = stride % item == 0 ? stride / item : no_stride;
}

ArrayView described_array(const py::handle& object, const std::string& name) {
    const py::dict interface = interface_of(object, name);
    ArrayView view{name, described_type(name, entry(interface, name, "typestr")), {}, {}};
    const std::int64_t item = view.type.back() - '0';
    read_described_axes(interface, item, view);
    const py::object data = entry(interface, name, "data");
    if (!py::isinstance<py::tuple>(data) || py::len(data) != 2 ||
        !py::isinstance<py::int_>(py::tuple(data)[0]))
        refuse_described(name, "data (pointer, read-only)", data);
    const auto address = std::uintptr_t{PyLong_AsUnsignedLongLong(py::tuple(data)[0].ptr())};
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (address == 0 && !is_empty(view)) refuse_described(name, "a pointer that is not null", data);
    if (address % static_cast<std::uintptr_t>(item) != 0)
        refuse_described(name, "a pointer aligned to its items", data);
    view.data = reinterpret_cast<void*>(address);
    view.read_only = py::cast<bool>(py::tuple(data)[1]);
    return view;
}

[[noreturn]] void refuse_foreign(const py::handle& object, const ArrayName& name) {
    throw py::type_error(name.text() + " must be a NumPy array, got " + class_of(object));
}

void expect_dense_floats(const ArrayView& view) {
    if (view.type != "f4") throw py::value_error(view.name + " must be float32 (f4), got " + view.type);
    // In the order of their strides. The stride of an axis of length 1 means nothing.
    std::vector<std::size_t> order(view.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::erase_if(order, [&](std::size_t axis) { return view.shape[axis] == 1; });
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return view.strides[a] > view.strides[b]; });
    if (!is_empty(view) && !is_packed(view, order))
        throw py::value_error(view.name +
                              " must be dense: its elements must fill its memory without gaps, in any "
                              "order of its axes");
}

DenseFloats dense_floats_of(const ArrayView& view, bool written) {
    expect_dense_floats(view);
    return {static_cast<float*>(written ? view.writable() : view.data), view.count()};
}

DenseFloats numpy_floats(const py::array& array, const ArrayName& name, bool written) {
    const py::dtype type = array.dtype();
    const bool is_plain = type.kind() == 'f' && type.itemsize() == 4 && type.byteorder() != '>' &&
                          is_aligned(array) &&
                          (array.flags() & (py::array::c_style | py::array::f_style)) != 0;
    if (!is_plain || (written && !array.writeable()))
        return dense_floats_of(aligned_array(array, name.text()), written);
    return {static_cast<float*>(const_cast<void*>(array.data())), array.size()};
}

}  // namespace

std::string ArrayName::text() const {
    return index == none_of_several ? name : std::string(name) + "[" + std::to_string(index) + "]";
}

std::int64_t ArrayView::count() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string ArrayView::shape_text() const {
    std::string text = "(";
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
        text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

void* ArrayView::writable() const {
    if (read_only) throw py::value_error(name + " must be writable");
    return data;
}

ArrayView read_array(const py::handle& object, const ArrayName& name, const Place& place) {
    if (place.kind == Place::processor) {
        if (!py::isinstance<py::array>(object)) refuse_foreign(object, name);
        return aligned_array(py::reinterpret_borrow<py::array>(object), name.text());
    }
    DlpackTensor shown;
    if (!show_by_dlpack(object, name, shown)) return described_array(object, name.text());
    expect_place(shown, name, place);
    return shown_array(shown, name.text());
}

DenseFloats read_dense_floats(const py::handle& object, const ArrayName& name, const Place& place,
                              bool written) {
    const bool is_here = place.kind == Place::processor;
    if (is_here && py::isinstance<py::array>(object))
        return numpy_floats(py::reinterpret_borrow<py::array>(object), name, written);
    DlpackTensor shown;
    if (show_by_dlpack(object, name, shown)) {
        expect_place(shown, name, place);
        if (const auto tensor = plain_floats(shown)) return *tensor;
        return dense_floats_of(shown_array(shown, name.text()), written);
    }
    if (is_here) refuse_foreign(object, name);
    return dense_floats_of(described_array(object, name.text()), written);
}

ArrayView read_images(const py::handle& object, const ArrayName& name, DType dtype, bool written) {
    if (!py::isinstance<py::array>(object)) refuse_foreign(object, name);
    ArrayView view = numpy_array(py::reinterpret_borrow<py::array>(object), name.text());
    if (written) view.writable();
    expect_contiguous(view);
    const char* const type = dtype == DType::float32   ? "f4"
                             : dtype == DType::float16 ? "f2"
                             : dtype == DType::uint8   ? "u1"
                                                       : "u2";
    if (view.type != type)
        throw py::value_error(view.name + " must have the type " + type + ", got " + view.type);
    return view;
}

void expect_axes(const ArrayView& view, std::size_t axes, const char* shape) {
    if (view.shape.size() != axes)
        throw py::value_error(view.name + " must have shape " + shape + ", got " + view.shape_text());
}

void expect_contiguous(const ArrayView& view) {
    if (!is_contiguous(view)) throw py::value_error(view.name + " must be C-contiguous");
}

void expect_per_item(const ArrayView& view, std::int64_t count, const std::string& type,
                     const std::string& item) {
    if (view.shape.size() != 1 || view.shape[0] != count || view.type != type)
        throw py::value_error(view.name + " must have shape (" + std::to_string(count) + ",) and type " +
                              type + ", one for each " + item + ", got " + view.shape_text() + " and " +
                              view.type);
    expect_contiguous(view);
}

void expect_flat(const ArrayView& view, const std::string& type, std::int64_t least) {
    const bool flat = view.shape.size() == 1 && is_contiguous(view);
    if (!flat || view.shape[0] < least || view.type != type)
        throw py::value_error(view.name + " must have shape (n,), n at least " + std::to_string(least) +
                              ", without gaps, and type " + type + ", got " + view.shape_text() + " and " +
                              view.type);
}

bool has_channels_last(const ArrayView& view) {
    return is_empty(view) || is_packed(view, {0, 2, 3, 1});
}

bool expect_channels_last(const ArrayView& view) {
    if (is_contiguous(view)) return false;
    if (has_channels_last(view)) return true;
    throw py::value_error(view.name + " must be contiguous with channels first or last");
}

}  // namespace hpcai500::bindings
