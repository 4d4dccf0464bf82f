#include "climate_arguments.h"

#include <utility>

#include "bindings.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

std::string text(const py::handle& value) {
    return std::string(py::str(value));
}

Filter filter_of(const std::string& name) {
    constexpr std::pair<const char*, Filter> known[] = {{"deflate", Filter::deflate},
                                                        {"shuffle", Filter::shuffle},
                                                        {"fletcher32", Filter::fletcher32},
                                                        {"lzf", Filter::lzf}};
    for (const auto& [spelling, filter] : known)
        if (name == spelling) return filter;
    throw py::value_error("filters must be among deflate, shuffle, fletcher32, lzf; got '" + name + "'");
}

Extents extents_of(const py::object& value, const char* name) {
    const auto numbers = py::cast<std::vector<std::int64_t>>(value);
    if (numbers.size() != 4)
        throw py::value_error(std::string(name) + " must be (images, channels, rows, columns), got " +
                              text(value));
    return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

template <class Number>
std::vector<Number> table_of(const py::object& value, const char* name) {
    const auto array = py::array_t<Number, py::array::c_style>::ensure(value);
    if (!array || array.ndim() != 1)
        throw py::value_error(std::string(name) + " must be a one-dimensional array of whole numbers");
    return {array.data(), array.data() + array.size()};
}

ClimateFile climate_file(const py::handle& value) {
    ClimateFile file;
    file.path = file_name(value.attr("path"));
    const std::string dtype = text(value.attr("dtype"));
    if (dtype != "<f4")
        throw py::value_error(file.path + ": values of type " + dtype +
                              " are not read, only little-endian float32 (<f4)");
    file.shape = extents_of(value.attr("shape"), "shape");
    const py::object offset = value.attr("offset"), chunk = value.attr("chunk");
    if (!offset.is_none()) file.offset = py::cast<std::uint64_t>(offset);
    if (!chunk.is_none()) file.chunk = extents_of(chunk, "chunk");
    for (const py::handle filter : value.attr("filters")) file.filters.push_back(filter_of(text(filter)));
    file.addresses = table_of<std::uint64_t>(value.attr("addresses"), "addresses");
    file.sizes = table_of<std::uint64_t>(value.attr("sizes"), "sizes");
    file.masks = table_of<std::uint32_t>(value.attr("masks"), "masks");
    return file;
}

const std::int64_t* parallel(const std::optional<Indices>& array, const char* name, py::ssize_t size) {
    if (!array) return nullptr;
    if (array->ndim() != 1 || array->size() != size)
        throw py::value_error(std::string(name) + " must be one-dimensional and have one entry for each of " +
                              std::to_string(size) + " images, got shape " + text(array->attr("shape")));
    return array->data();
}

}  // namespace

DType float_type(const std::string& name) {
    constexpr std::pair<const char*, DType> known[] = {
        {"float32", DType::float32}, {"float16", DType::float16}, {"bfloat16", DType::bfloat16}};
    for (const auto& [spelling, dtype] : known)
        if (name == spelling) return dtype;
    throw py::value_error("dtype must be one of float32, float16, bfloat16; got '" + name + "'");
}

std::vector<ClimateFile> climate_files(const py::sequence& files) {
    std::vector<ClimateFile> result;
    for (const py::handle file : files) result.push_back(climate_file(file));
    return result;
}

ImageMemory image_memory(const py::array& array, const std::string& name, DType dtype, bool writable,
                         const ImageExtents& extents) {
    if (writable && !array.writeable()) throw py::value_error(name + " must be writable");
    if ((array.flags() & py::array::c_style) == 0)
        throw py::value_error(name +
                              " must be C-contiguous: pass numpy.ascontiguousarray(...) or a fresh array");
    // NumPy has no bfloat16: its bits are an array of uint16.
    const char* const wanted = dtype == DType::float32 ? "<f4" : dtype == DType::float16 ? "<f2" : "<u2";
    if (!array.dtype().equal(py::dtype(std::string(wanted))))
        throw py::value_error(name + " must have the type " + wanted + ", got " + text(array.dtype()));
    const bool fits = array.ndim() == 4 && array.shape(1) == extents.channels &&
                      array.shape(2) == extents.rows && array.shape(3) == extents.columns;
    if (!fits)
        throw py::value_error(name + " must have the shape (images, " + std::to_string(extents.channels) +
                              ", " + std::to_string(extents.rows) + ", " + std::to_string(extents.columns) +
                              "), got " + text(array.attr("shape")));
    return {const_cast<void*>(array.data()), array.shape(0)};
}

std::vector<ImageRequest> image_requests(const std::optional<Indices>& files, const Indices& images,
                                         const std::optional<Indices>& places,
                                         const std::optional<Indices>& rolls, std::int64_t columns) {
    const py::ssize_t size = images.size();
    const std::int64_t* const image = parallel(images, "images", size);
    const std::int64_t* const file = parallel(files, "files", size);
    const std::int64_t* const place = parallel(places, "places", size);
    const std::int64_t* const roll = parallel(rolls, "rolls", size);
    std::vector<ImageRequest> requests;
    for (py::ssize_t i = 0; i < size; ++i) {
        const std::int64_t turned = roll == nullptr ? 0 : roll[i] % columns;
        requests.push_back({file == nullptr ? 0 : file[i], image[i], place == nullptr ? i : place[i],
                            turned < 0 ? turned + columns : turned});
    }
    return requests;
}

void check_count(const std::vector<ImageRequest>& requests, const std::optional<Indices>& places,
                 std::int64_t images) {
    if (!places && static_cast<std::int64_t>(requests.size()) != images)
        throw py::value_error("out must have room for exactly " + std::to_string(requests.size()) +
                              " images, got " + std::to_string(images) + "; or say which in places");
}

}  // namespace hpcai500::bindings
