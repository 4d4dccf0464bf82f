// The climate reader.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "core/climate/climate_reader.h"
#include "python.h"

namespace py = pybind11;
using namespace py::literals;

namespace hpcai500::bindings {
namespace {

// Whole numbers of any integer type; floats are refused.
using Indices = py::array_t<std::int64_t, py::array::c_style>;

constexpr Choice<DType> float_types[] = {
    {"float32", DType::float32}, {"float16", DType::float16}, {"bfloat16", DType::bfloat16}};
constexpr Choice<Filter> filters[] = {{"deflate", Filter::deflate},
                                      {"shuffle", Filter::shuffle},
                                      {"fletcher32", Filter::fletcher32},
                                      {"lzf", Filter::lzf}};

py::object or_none(std::int64_t number) {
    return number < 0 ? py::object(py::none()) : py::object(py::int_(number));
}

// A ValueError that also says what failed, and where.
py::object error_of(const py::handle& type, const ClimateError& error) {
    const ClimatePlace& place = error.place();
    const py::object chunk = place.chunk ? py::object(py::tuple(py::cast(*place.chunk))) : py::none();
    std::string text = std::string(name(error.kind())) + ": file " + std::to_string(place.file);
    if (place.image >= 0) text += ", image " + std::to_string(place.image);
    if (place.channel >= 0) text += ", channel " + std::to_string(place.channel);
    if (place.chunk) text += ", chunk " + text_of(chunk);
    const py::object instance = type(text + ": " + error.what());
    instance.attr("kind") = name(error.kind());
    instance.attr("file") = place.file;
    instance.attr("image") = or_none(place.image);
    instance.attr("channel") = or_none(place.channel);
    instance.attr("chunk") = chunk;
    instance.attr("reason") = error.what();
    return instance;
}

Extents extents_of(const py::object& value, const char* name) {
    const auto numbers = py::cast<std::vector<std::int64_t>>(value);
    if (numbers.size() != 4)
        throw py::value_error(std::string(name) + " must be (images, channels, rows, columns), got " +
                              text_of(value));
    return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

template <class Number>
std::vector<Number> table_of(const py::object& value, const char* name) {
    const auto array = py::array_t<Number, py::array::c_style>::ensure(value);
    if (!array || array.ndim() != 1)
        throw py::value_error(std::string(name) + " must be a one-dimensional array of whole numbers");
    return {array.data(), array.data() + array.size()};
}

// From an object with path, shape, dtype, offset, chunk, filters, addresses, sizes and masks.
ClimateFile climate_file(const py::handle& value) {
    ClimateFile file;
    file.path = file_name(value.attr("path"));
    const std::string dtype = text_of(value.attr("dtype"));
    if (dtype != "<f4")
        throw py::value_error(file.path + ": values of type " + dtype +
                              " are not read, only little-endian float32 (<f4)");
    file.shape = extents_of(value.attr("shape"), "shape");
    const py::object offset = value.attr("offset"), chunk = value.attr("chunk");
    if (!offset.is_none()) file.offset = py::cast<std::uint64_t>(offset);
    if (!chunk.is_none()) file.chunk = extents_of(chunk, "chunk");
    for (const py::handle filter : value.attr("filters"))
        file.filters.push_back(parse(filters, "filters must be among", text_of(filter)));
    file.addresses = table_of<std::uint64_t>(value.attr("addresses"), "addresses");
    file.sizes = table_of<std::uint64_t>(value.attr("sizes"), "sizes");
    file.masks = table_of<std::uint32_t>(value.attr("masks"), "masks");
    return file;
}

const std::int64_t* parallel(const std::optional<Indices>& array, const char* name, py::ssize_t size) {
    if (!array) return nullptr;
    if (array->ndim() != 1 || array->size() != size)
        throw py::value_error(std::string(name) + " must be one-dimensional and have one entry for each of " +
                              std::to_string(size) + " images, got shape " + text_of(array->attr("shape")));
    return array->data();
}

// From parallel arrays; `places` default to 0, 1, ..., `rolls` to 0. Rolls may be negative or larger than the
// image, as for numpy.roll.
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

// Memory of images (images, channels, rows, columns).
struct ImageMemory {
    void* data;
    std::int64_t images;
};

class PyClimateReader {
  public:
    PyClimateReader(const py::sequence& files, const ClimateSpec& spec)
        : dtype_(spec.dtype), reader_("ClimateReader", make(files, spec)) {}

    py::tuple image_shape() const {
        const ClimateReader& reader = reader_.still();
        return py::make_tuple(reader.channels(), reader.rows(), reader.width());
    }
    std::uint64_t chunks_inflated() const { return reader_.still().chunks_inflated(); }

    void read(const Indices& files, const Indices& images, const py::array& out,
              const std::optional<Indices>& places, const std::optional<Indices>& rolls) {
        ClimateReader& reader = *reader_;
        const auto requests = image_requests(files, images, places, rolls, reader.columns());
        const ImageMemory memory = room_for(requests, places, out);
        run([&](const WorkerPool::Stop& stop) {
            return reader.read(requests, memory.images, memory.data, stop);
        });
    }

    void read_window(std::int64_t file, std::int64_t first, std::int64_t count, const py::array& out,
                     const std::array<std::size_t, 3>& part) {
        ClimateReader& reader = *reader_;
        const ImageMemory memory = image_memory(out, "out", true, reader.columns());
        if (memory.images != count)
            throw py::value_error("out must have room for " + std::to_string(count) + " images, got " +
                                  std::to_string(memory.images));
        run([&](const WorkerPool::Stop& stop) {
            return reader.read_window(file, first, count, {part[0], part[1], part[2]}, memory.data, stop);
        });
    }

    void take(const py::array& window, const Indices& positions, const py::array& out,
              const std::optional<Indices>& places, const std::optional<Indices>& rolls) {
        ClimateReader& reader = *reader_;
        const auto requests = image_requests(std::nullopt, positions, places, rolls, reader.columns());
        const ImageMemory from = image_memory(window, "window", false, reader.columns());
        const ImageMemory memory = room_for(requests, places, out);
        run([&](const WorkerPool::Stop& stop) {
            return reader.take(from.data, from.images, requests, memory.images, memory.data, stop);
        });
    }

    void close() { reader_.close(); }

  private:
    static std::unique_ptr<ClimateReader> make(const py::sequence& given, const ClimateSpec& spec) {
        std::vector<ClimateFile> files;
        for (const py::handle file : given) files.push_back(climate_file(file));
        return without_gil([&] { return std::make_unique<ClimateReader>(std::move(files), spec); });
    }

    ImageMemory image_memory(const py::array& array, const char* name, bool written,
                             std::int64_t columns) const {
        const ArrayView view = read_images(array, {name}, dtype_, written);
        const std::int64_t channels = reader_->channels(), rows = reader_->rows();
        if (view.shape.size() != 4 || view.shape[1] != channels || view.shape[2] != rows ||
            view.shape[3] != columns)
            throw py::value_error(view.name + " must have the shape (images, " + std::to_string(channels) +
                                  ", " + std::to_string(rows) + ", " + std::to_string(columns) + "), got " +
                                  view.shape_text());
        return {view.data, view.shape[0]};
    }

    // Without places, as many requests as `out` has room for.
    ImageMemory room_for(const std::vector<ImageRequest>& requests, const std::optional<Indices>& places,
                         const py::array& out) const {
        const ImageMemory memory = image_memory(out, "out", true, reader_->width());
        if (!places && static_cast<std::int64_t>(requests.size()) != memory.images)
            throw py::value_error("out must have room for exactly " + std::to_string(requests.size()) +
                                  " images, got " + std::to_string(memory.images) +
                                  "; or say which in places");
        return memory;
    }

    // Without the GIL; Ctrl-C ends it after the pieces that the threads are working on.
    template <class Job>
    static void run(const Job& job) {
        bool interrupted = false;
        JobEnd end = JobEnd::stopped;
        try {
            ReleasedGil released;
            end = job([&] { return interrupted = released.interrupted(); });
        } catch (const ClimateError&) {
            // What a handler of signals has raised goes first.
            if (!interrupted) throw;
        }
        // Also where all was done meanwhile: the handler has run, and what it raised is pending.
        if (interrupted) throw py::error_already_set();
        if (end == JobEnd::closed) throw std::runtime_error("the reader is closed");
    }

    DType dtype_;
    OfOneProcess<ClimateReader> reader_;
};

std::unique_ptr<PyClimateReader> make_reader(const py::sequence& files, const std::vector<int>& channels,
                                             const std::optional<std::vector<double>>& mean,
                                             const std::optional<std::vector<double>>& std,
                                             const std::string& dtype, std::int64_t left, std::int64_t width,
                                             int threads) {
    const ClimateSpec spec{channels,
                           mean.value_or(std::vector<double>{}),
                           std.value_or(std::vector<double>{}),
                           parse(float_types, "dtype must be one of", dtype),
                           left,
                           width,
                           threads};
    return std::make_unique<PyClimateReader>(files, spec);
}

}  // namespace

void register_climate(py::module_& module) {
    register_error<ClimateError, error_of>(module, "ClimateError",
                                           "A climate image that cannot be read. `kind` is 'truncated', "
                                           "'corrupt', 'unreadable' or 'unsupported'.");
    py::class_<PyClimateReader>(
        module, "ClimateReader",
        "Reads 16-channel images by chunk address, in native threads, without HDF5.\n\n"
        "Does not survive fork(): make it in the process that uses it.")
        .def(py::init(&make_reader), "files"_a, py::kw_only(), "channels"_a, "mean"_a, "std"_a, "dtype"_a,
             "left"_a, "width"_a, "threads"_a)
        .def_property_readonly("image_shape", &PyClimateReader::image_shape,
                               "Of one image that read() makes.")
        .def_property_readonly("chunks_inflated", &PyClimateReader::chunks_inflated,
                               "Chunks whose filters were undone since the reader was made.")
        .def("read", &PyClimateReader::read, "files"_a, "images"_a, "out"_a, py::kw_only(),
             "places"_a = py::none(), "rolls"_a = py::none(), "Reads images into `out`.")
        .def("read_window", &PyClimateReader::read_window, "file"_a, "first"_a, "count"_a, "out"_a,
             py::kw_only(), "part"_a = std::array<std::size_t, 3>{0, 1, 1},
             "Reads images first..first + count of one file, whole, each chunk once.")
        .def("take", &PyClimateReader::take, "window"_a, "positions"_a, "out"_a, py::kw_only(),
             "places"_a = py::none(), "rolls"_a = py::none(),
             "Copies images out of a window, rolled and cropped.")
        .def("close", &PyClimateReader::close, "Stops the threads. May be called twice.")
        .def("__enter__", [](const py::object& self) { return self; })
        .def("__exit__", [](PyClimateReader& self, const py::args&) { self.close(); });
}

}  // namespace hpcai500::bindings
