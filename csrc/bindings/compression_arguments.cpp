#include "compression_arguments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dlpack_array.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

bool is_aligned(const py::array& array) {
    return (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
}

// What nearly every tensor is, found without memory of our own: a bucket has hundreds.
bool is_plain(const py::array& array) {
    const py::dtype type = array.dtype();
    return type.kind() == 'f' && type.itemsize() == 4 && type.byteorder() != '>' && is_aligned(array) &&
           (array.flags() & (py::array::c_style | py::array::f_style)) != 0;
}

DenseFloats array_of(const py::array& array, const ArrayName& name, bool written) {
    if (!is_plain(array)) check_dense_floats(view_of(array, name.text()));
    if (written && !array.writeable()) throw py::value_error(name.text() + " must be writable");
    return {static_cast<float*>(const_cast<void*>(array.data())), array.size()};
}

DenseFloats tensor_of(const py::object& object, const ArrayName& name) {
    DlpackTensor shown;
    if (!show_by_dlpack(object, name, shown))
        throw py::type_error(name.text() + " must be a NumPy array, got " +
                             std::string(py::str(py::type::handle_of(object))));
    if (shown.device_type != dlpack_device::processor && shown.device_type != dlpack_device::cuda_host)
        throw py::type_error(name.text() + " must be in the processor's memory, got one " +
                             place_text(shown));
    if (const auto tensor = dense_floats(shown)) return *tensor;
    ArrayView view{name.text(), "", {}, {}};
    void* const data = read_dlpack(shown, view);
    check_dense_floats(view);
    return {static_cast<float*>(data), element_count(view)};
}

MemoryRange range_of(const void* data, std::int64_t bytes, bool written, const ArrayName& name) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return {begin, begin + static_cast<std::uintptr_t>(bytes), written, name};
}

[[noreturn]] void refuse_overlap(const MemoryRange& first, const MemoryRange& second) {
    throw py::value_error(second.name.text() + " overlaps " + first.name.text() + " in memory");
}

}  // namespace

Wire wire_of(const std::string& name) {
    if (name == "float32") return Wire::float32;
    if (name == "float16") return Wire::float16;
    if (name == "bfloat16") return Wire::bfloat16;
    throw py::value_error("wire must be float32, float16 or bfloat16, got " + name);
}

const char* wire_type(Wire wire) {
    return wire == Wire::float32 ? "f4" : wire == Wire::float16 ? "f2" : "u2";
}

float scale_of(double scale) {
    const auto rounded = static_cast<float>(scale);
    if (!std::isfinite(rounded))
        throw py::value_error("scale must be finite in float32, got " +
                              std::string(py::str(py::float_(scale))));
    return rounded;
}

void check_threads(int threads) {
    if (threads < 1) throw py::value_error("threads must be at least 1, got " + std::to_string(threads));
}

void check_no_overlap(std::vector<MemoryRange> ranges) {
    std::erase_if(ranges, [](const MemoryRange& range) { return range.begin == range.end; });
    std::sort(ranges.begin(), ranges.end(),
              [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
    // Of those read and of those written so far, the one that reaches farthest.
    const MemoryRange* farthest[2] = {nullptr, nullptr};
    for (const MemoryRange& range : ranges) {
        for (const bool written : {false, true}) {
            const MemoryRange* const before = farthest[written];
            if (before != nullptr && (written || range.written) && range.begin < before->end)
                refuse_overlap(*before, range);
        }
        const MemoryRange*& own = farthest[range.written];
        if (own == nullptr || own->end < range.end) own = &range;
    }
}

std::int64_t element_count(const ArrayView& view) {
    std::int64_t count = 1;
    for (const std::int64_t length : view.shape) count *= length;
    return count;
}

void check_dense_floats(const ArrayView& view) {
    if (view.type != "f4") throw py::value_error(view.name + " must be float32 (f4), got " + view.type);
    if (element_count(view) == 0) return;
    std::vector<std::size_t> order(view.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // The stride of an axis of length 1 means nothing.
    std::erase_if(order, [&](std::size_t axis) { return view.shape[axis] == 1; });
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return view.strides[a] < view.strides[b]; });
    std::int64_t expected = 1;
    for (const std::size_t axis : order) {
        if (view.strides[axis] != expected)
            throw py::value_error(view.name +
                                  " must be dense: its elements must fill its memory without gaps, in any "
                                  "order of its axes");
        expected *= view.shape[axis];
    }
}

void check_flat(const ArrayView& view, const std::string& type, std::int64_t least) {
    const bool flat = view.shape.size() == 1 && (view.shape[0] < 2 || view.strides[0] == 1);
    if (!flat || view.shape[0] < least || view.type != type)
        throw py::value_error(view.name + " must have shape (n,), n at least " + std::to_string(least) +
                              ", without gaps, and type " + type + ", got " + shape_text(view.shape) +
                              " and " + view.type);
}

HostTensors::HostTensors(const py::sequence& tensors, const char* name, bool written) {
    const std::size_t size = py::len(tensors);
    held_.reserve(size);
    spans_.reserve(size);
    sources_.reserve(size);
    ranges_.reserve(size + 4);
    for (std::size_t index = 0; index < size; ++index) {
        held_.push_back(tensors[index]);
        const py::object& object = held_.back();
        const ArrayName item{name, index};
        const DenseFloats tensor = py::isinstance<py::array>(object)
                                       ? array_of(py::reinterpret_borrow<py::array>(object), item, written)
                                       : tensor_of(object, item);
        spans_.emplace_back(tensor.data, static_cast<std::size_t>(tensor.count));
        sources_.emplace_back(tensor.data, static_cast<std::size_t>(tensor.count));
        ranges_.push_back(range_of(tensor.data, tensor.count * 4, written, item));
        count_ += tensor.count;
    }
}

const void* FlatArrays::read(const py::array& array, const char* name, const std::string& type,
                             std::int64_t least) {
    check_flat(view_of(array, name), type, least);
    ranges_.push_back(range_of(array.data(), array.nbytes(), false, {name}));
    return array.data();
}

void* FlatArrays::write(const py::array& array, const char* name, const std::string& type,
                        std::int64_t least) {
    static_cast<void>(read(array, name, type, least));
    if (!array.writeable()) throw py::value_error(std::string(name) + " must be writable");
    ranges_.back().written = true;
    return const_cast<void*>(array.data());
}

void* FlatArrays::write(const std::optional<py::array>& array, const char* name, const std::string& type,
                        std::int64_t least) {
    return array ? write(*array, name, type, least) : nullptr;
}

double* FlatArrays::norms(const std::optional<py::array>& array, std::size_t tensors) {
    const auto least = static_cast<std::int64_t>(tensors);
    auto* const memory = static_cast<double*>(write(array, "norms", "f8", least));
    if (array && array->size() != least)
        throw py::value_error("norms must have one item for each of the " + std::to_string(tensors) +
                              " tensors, got " + std::to_string(array->size()));
    return memory;
}

}  // namespace hpcai500::bindings
