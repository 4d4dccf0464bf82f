// JPEG files: what an image becomes, decoding one, the loader of batches, and seek points.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "core/jpeg/decode_crop.h"
#include "core/jpeg/loader.h"
#include "core/jpeg/seek_index.h"
#include "core/jpeg/spec.h"
#include "python.h"

namespace py = pybind11;
using namespace py::literals;

namespace hpcai500::bindings {
namespace {

constexpr Choice<CropMode> modes[] = {{"random", CropMode::random}, {"centre", CropMode::centre}};
constexpr Choice<DType> dtypes[] = {{"float32", DType::float32},
                                    {"float16", DType::float16},
                                    {"bfloat16", DType::bfloat16},
                                    {"uint8", DType::uint8}};
constexpr Choice<Layout> layouts[] = {{"nchw", Layout::nchw}, {"nhwc", Layout::nhwc}};
constexpr Choice<JpegDecoder> decoders[] = {{"own", JpegDecoder::own},
                                            {"libjpeg-turbo", JpegDecoder::libjpeg_turbo}};

template <std::size_t count>
py::tuple tuple_of(const std::array<double, count>& values) {
    return std::apply([](auto... value) { return py::make_tuple(value...); }, values);
}

DecodeSpec make_spec(int size, const std::string& mode, std::array<double, 2> area,
                     std::array<double, 2> ratio, double flip_probability, int resize_shorter,
                     std::array<double, 3> mean, std::array<double, 3> std, const std::string& dtype,
                     const std::string& layout, bool dct_scaling, const std::string& decoder) {
    const DecodeSpec spec{size,
                          parse(modes, "mode must be one of", mode),
                          area,
                          ratio,
                          flip_probability,
                          resize_shorter,
                          mean,
                          std,
                          parse(dtypes, "dtype must be one of", dtype),
                          parse(layouts, "layout must be one of", layout),
                          dct_scaling,
                          parse(decoders, "decoder must be one of", decoder)};
    validate(spec);
    return spec;
}

// In the order of the class's arguments.
py::dict settings(const DecodeSpec& spec) {
    return py::dict("size"_a = spec.size, "mode"_a = name_of(modes, spec.mode),
                    "area"_a = tuple_of(spec.area), "ratio"_a = tuple_of(spec.ratio),
                    "flip_probability"_a = spec.flip_probability, "resize_shorter"_a = spec.resize_shorter,
                    "mean"_a = tuple_of(spec.mean), "std"_a = tuple_of(spec.std),
                    "dtype"_a = name_of(dtypes, spec.dtype), "layout"_a = name_of(layouts, spec.layout),
                    "dct_scaling"_a = spec.dct_scaling, "decoder"_a = name_of(decoders, spec.decoder));
}

std::string represent(const DecodeSpec& spec) {
    std::string text;
    for (const auto& [key, value] : settings(spec))
        text += (text.empty() ? "" : ", ") + text_of(key) + "=" + text_of(py::repr(value));
    return "DecodeSpec(" + text + ")";
}

py::tuple image_shape(const DecodeSpec& spec) {
    if (spec.layout == Layout::nchw) return py::make_tuple(3, spec.size, spec.size);
    return py::make_tuple(spec.size, spec.size, 3);
}

std::uint64_t bounded(const py::int_& value, std::uint64_t most, const char* name, const char* range) {
    const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
    const bool failed = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    if (failed || number > most)
        throw py::value_error(std::string(name) + " must be in [0, " + range + "), got " + text_of(value));
    return number;
}

std::uint64_t seed_number(const py::int_& seed) {
    return bounded(seed, std::numeric_limits<std::uint64_t>::max(), "seed", "2**64");
}

std::uint32_t epoch_number(const py::int_& epoch) {
    return static_cast<std::uint32_t>(
        bounded(epoch, std::numeric_limits<std::uint32_t>::max(), "epoch", "2**32"));
}

SampleKey sample_key(const py::int_& seed, const py::int_& epoch, const py::int_& sample) {
    return {seed_number(seed), epoch_number(epoch),
            bounded(sample, std::numeric_limits<std::int64_t>::max(), "sample", "2**63")};
}

// Memory of an output array: writable, C-contiguous, with items and bytes as the spec wants. `images` is how
// many images it must hold; 0 accepts any whole number, and then is what it holds.
void* output_memory(const py::handle& array, const DecodeSpec& spec, const ArrayName& name,
                    std::size_t& images) {
    const ArrayView view = read_images(array, name, spec.dtype, true);
    const std::size_t bytes = static_cast<std::size_t>(view.count()) * item_size(spec.dtype);
    const std::size_t image = spec.image_bytes();
    const bool fits = images > 0 ? bytes == images * image : bytes > 0 && bytes % image == 0;
    if (!fits)
        throw py::value_error(view.name + " must have " +
                              (images > 0 ? std::to_string(images) + " x " : "a multiple of ") +
                              std::to_string(image) + " bytes, got " + std::to_string(bytes));
    images = bytes / image;
    return view.data;
}

void* image_memory(const py::array& array, const DecodeSpec& spec) {
    std::size_t images = 1;
    return output_memory(array, spec, {"out"}, images);
}

// A share of an index that others may use, too.
struct PySeekIndex {
    std::shared_ptr<const SeekIndex> index;
};

// The index that a caller gave, or none.
std::shared_ptr<const SeekIndex> index_of(const py::object& index) {
    if (index.is_none()) return nullptr;
    if (!py::isinstance<PySeekIndex>(index)) throw py::type_error("index must be a SeekIndex or None");
    return py::cast<const PySeekIndex&>(index).index;
}

// The current thread's, made once.
ImageDecoder& thread_decoder() {
    thread_local ImageDecoder decoder;
    return decoder;
}

// A ValueError that also says which kind of failure it is.
py::object jpeg_error_of(const py::handle& type, const DecodeError& error) {
    const py::object instance = type(std::string(name(error.kind())) + ": " + error.what());
    instance.attr("kind") = name(error.kind());
    return instance;
}

py::tuple check_jpeg(const py::object& data) {
    const BytesView view(data);
    const auto checked = without_gil([&] { return thread_decoder().check(view.bytes()); });
    return py::make_tuple(checked.width, checked.height, checked.warnings);
}

void crop_pixels(const py::array_t<std::uint8_t>& pixels, const DecodeSpec& spec, const py::array& out,
                 const py::int_& seed, const py::int_& epoch, const py::int_& sample) {
    const bool image = pixels.ndim() == 3 && pixels.shape(2) == 3 && pixels.size() > 0;
    if (!image || (pixels.flags() & py::array::c_style) == 0)
        throw py::value_error(
            "pixels must be a C-contiguous uint8 array of shape (height, width, 3), got shape " +
            text_of(pixels.attr("shape")));
    if (std::int64_t{pixels.shape(0)} * pixels.shape(1) > JpegReader::most_pixels)
        throw py::value_error("pixels must be at most " + std::to_string(JpegReader::most_pixels) + ", got " +
                              text_of(pixels.attr("shape")));
    const RgbPixels source{pixels.data(), static_cast<int>(pixels.shape(1)),
                           static_cast<int>(pixels.shape(0))};
    void* const memory = image_memory(out, spec);
    const SampleKey key = sample_key(seed, epoch, sample);
    const ReleasedGil released;
    thread_decoder().crop_pixels(source, spec, key, memory);
}

int decode_crop(const py::object& data, const DecodeSpec& spec, const py::array& out, const py::int_& seed,
                const py::int_& epoch, const py::int_& sample, const py::object& index) {
    const BytesView view(data);
    const auto points = index_of(index);
    void* const memory = image_memory(out, spec);
    const SampleKey key = sample_key(seed, epoch, sample);
    const ReleasedGil released;
    return thread_decoder().decode_crop(view.bytes(), spec, key, memory, points.get());
}

int decode_box(const py::object& data, const DecodeSpec& spec, const py::array& out, double x, double y,
               double width, double height, bool flip, const py::object& index) {
    const BytesView view(data);
    const auto points = index_of(index);
    void* const memory = image_memory(out, spec);
    const ReleasedGil released;
    return thread_decoder().decode_box(view.bytes(), spec, {x, y, width, height, flip}, memory, points.get());
}

const char* last_seek() {
    constexpr const char* names[] = {"used", "without", "unknown", "false"};
    return names[static_cast<int>(thread_decoder().last_seek())];
}

py::bytes as_bytes(std::span<const std::uint8_t> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::object seek_points(const py::object& data) {
    const BytesView view(data);
    const auto points = without_gil([&] { return thread_decoder().seek_points(view.bytes()); });
    return points ? py::object(as_bytes(*points)) : py::none();
}

py::tuple key_of(const py::object& data) {
    const BytesView view(data);
    const SeekKey key = without_gil([&] { return seek_key(view.bytes()); });
    return py::make_tuple(key.checksum, key.bytes);
}

PySeekIndex open_index(const py::object& path) {
    const std::string name = file_name(path);
    return {without_gil([&] { return open_seek_index(name); })};
}

// None where the index does not know the file; no bytes where it knows that there are no points.
py::object find_points(const PySeekIndex& self, const py::object& data) {
    const BytesView view(data);
    GrowBuffer<std::uint8_t> room;
    baseline::SeekPoints points;
    const auto answer = without_gil([&] { return self.index->find(seek_key(view.bytes()), room, points); });
    if (answer == SeekIndex::Answer::unknown) return py::none();
    if (answer == SeekIndex::Answer::damaged)
        throw py::value_error("what the index says of this file is damaged");
    return as_bytes(points.packed());
}

void add_points(SeekIndexWriter& writer, std::uint32_t checksum, std::uint32_t bytes,
                const py::object& points) {
    if (points.is_none()) return writer.add({checksum, bytes}, {});
    const BytesView view(points);
    writer.add({checksum, bytes}, view.bytes());
}

class PyLoader {
  public:
    struct ResultTypes {
        NamedTuple batch, failure;
    };

    PyLoader(const py::handle& root, const py::sequence& paths, const DecodeSpec& spec,
             const py::sequence& slots, int threads, const py::object& index, const ResultTypes& types)
        : types_(types), loader_("JpegLoader", make(root, paths, spec, slots, threads, index)) {}

    void submit(const py::array_t<std::int64_t, py::array::c_style>& samples, const py::int_& seed,
                const py::int_& epoch) {
        Loader& loader = *loader_;
        if (samples.ndim() != 1) throw py::value_error("samples must be one-dimensional");
        const std::uint64_t seed_value = seed_number(seed);
        const std::uint32_t epoch_value = epoch_number(epoch);
        loader.submit({samples.data(), static_cast<std::size_t>(samples.size())}, seed_value, epoch_value);
    }

    py::object next() {
        // How long Ctrl-C may wait for a batch that does not come.
        constexpr std::chrono::milliseconds signal_interval{100};
        Loader& loader = *loader_;
        for (;;) {
            const auto batch = without_gil([&] { return loader.next(signal_interval); });
            if (batch) return to_python(*batch);
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        }
    }

    void release(int slot) { loader_->release(slot); }
    std::size_t pending() const { return loader_->pending(); }
    void close() { loader_.close(); }

  private:
    std::unique_ptr<Loader> make(const py::handle& root, const py::sequence& paths, const DecodeSpec& spec,
                                 const py::sequence& slots, int threads, const py::object& index) {
        std::size_t batch_size = 0;
        std::vector<void*> memory;
        for (const py::handle slot : slots) {
            slots_.append(slot);
            memory.push_back(output_memory(slot, spec, {"slots", memory.size()}, batch_size));
        }
        PathTable table;
        for (const py::handle path : paths) table.add(file_name(path));
        const std::string folder = file_name(root);
        auto points = index_of(index);
        const ReleasedGil released;
        return std::make_unique<Loader>(folder, std::move(table), spec, std::move(memory),
                                        static_cast<int>(batch_size), threads, std::move(points));
    }

    py::object to_python(const FinishedBatch& batch) const {
        py::list failures;
        for (const ImageFailure& failure : batch.failures) {
            // A system's message may be in any encoding.
            const auto reason = py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
                failure.reason.data(), static_cast<Py_ssize_t>(failure.reason.size()), "replace"));
            failures.append(types_.failure(failure.position, failure.sample, name(failure.kind), reason));
        }
        return types_.batch(batch.slot, batch.count, batch.warnings, failures, batch.seek.used,
                            batch.seek.unknown, batch.seek.false_points);
    }

    ResultTypes types_;
    py::list slots_;  // keeps the caller's memory alive as long as threads may write to it
    OfOneProcess<Loader> loader_;
};

void register_spec(py::module_& module) {
    const DecodeSpec defaults;
    py::class_<DecodeSpec> spec(module, "DecodeSpec",
                                "What an image becomes: crop rule, output size, type and layout. Immutable.");
    spec.def(py::init(&make_spec), py::kw_only(), "size"_a, "mode"_a = "random",
             "area"_a = tuple_of(defaults.area), "ratio"_a = tuple_of(defaults.ratio),
             "flip_probability"_a = defaults.flip_probability, "resize_shorter"_a = defaults.resize_shorter,
             "mean"_a = tuple_of(defaults.mean), "std"_a = tuple_of(defaults.std), "dtype"_a = "float32",
             "layout"_a = "nchw", "dct_scaling"_a = false, "decoder"_a = "own");
    for (const auto& [name, value] : settings(defaults)) {
        const std::string key = text_of(name);
        spec.def_property_readonly(key.c_str(), py::cpp_function([key](const DecodeSpec& self) {
                                       return py::object(settings(self)[key.c_str()]);
                                   }));
    }
    spec.def_property_readonly("shape", &image_shape)
        .def_property_readonly("itemsize", [](const DecodeSpec& self) { return item_size(self.dtype); })
        .def_property_readonly("image_bytes", &DecodeSpec::image_bytes)
        .def("__repr__", &represent);
}

void register_decode(py::module_& module) {
    register_error<DecodeError, jpeg_error_of>(
        module, "JpegError",
        "An image that cannot be decoded. `kind` is 'unsupported' (another decoder may read it), "
        "'truncated', 'unreadable' or 'corrupt'.");
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
        "spec"_a, "width"_a, "height"_a, py::kw_only(), "seed"_a, "epoch"_a, "sample"_a,
        "The crop that a sample gets: a pure function of its arguments.");
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
        "data"_a, "Reads the header of a JPEG; raises JpegError (a ValueError).");
    module.def(
        "check_jpeg", &check_jpeg, "data"_a,
        "Decodes a JPEG up to its end marker and drops the pixels: (width, height, warnings) or JpegError.");
    module.def(
        "decode_crop", &decode_crop, "data"_a, "spec"_a, "out"_a, py::kw_only(), "seed"_a, "epoch"_a,
        "sample"_a, "index"_a = py::none(),
        "Makes one sample's image in `out`; returns the number of libjpeg's warnings; raises JpegError.");
    module.def("decode_box", &decode_box, "data"_a, "spec"_a, "out"_a, py::kw_only(), "x"_a, "y"_a, "width"_a,
               "height"_a, "flip"_a, "index"_a = py::none(),
               "decode_crop for a box of the caller's, in source pixels.");
    module.def("last_seek", &last_seek,
               "What became of the index of this thread's last decode_crop or decode_box.");
    module.def("crop_pixels", &crop_pixels, py::arg("pixels").noconvert(), "spec"_a, "out"_a, py::kw_only(),
               "seed"_a, "epoch"_a, "sample"_a,
               "decode_crop for pixels (height, width, 3) that another decoder made.");
}

void register_seek_index(py::module_& module) {
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const SeekIndexError& error) {
            py::set_error(PyExc_ValueError, error.what());
        }
    });
    module.def("seek_points", &seek_points, "data"_a,
               "Packed seek points of a JPEG; b'' where none pays, None where libjpeg-turbo decodes it.");
    module.def("seek_key", &key_of, "data"_a, "What an index knows a file by: (CRC-32, bytes).");
    py::class_<PySeekIndex>(module, "SeekIndex",
                            "An index of seek points, as `hpcai500 data index` writes it.")
        .def(py::init(&open_index), "path"_a)
        .def("__len__", [](const PySeekIndex& self) { return self.index->files(); })
        .def("find", &find_points, "data"_a, "Packed points of a file; None where it is unknown.");
    py::class_<SeekIndexWriter>(module, "SeekIndexWriter", "Writes an index of seek points.")
        .def(py::init(
                 [](const py::object& path) { return std::make_unique<SeekIndexWriter>(file_name(path)); }),
             "path"_a)
        .def("add", &add_points, "checksum"_a, "size"_a, "points"_a, "Adds a file.")
        .def("finish", &SeekIndexWriter::finish, py::call_guard<ReleasedGil>(),
             "Writes what makes it an index; returns its bytes.");
}

void register_loader(py::module_& module) {
    // OSError picks its subclass by errno: a missing folder is a FileNotFoundError.
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const std::system_error& error) {
            const py::object arguments = py::make_tuple(error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, arguments.ptr());
        }
    });
    const PyLoader::ResultTypes types{
        NamedTuple(module, "Batch", "slot count warnings failures seek_used seek_unknown seek_false",
                   "A finished batch, held until release(slot)."),
        NamedTuple(module, "Failure", "position sample kind reason",
                   "An image that could not be made; its place in the slot holds zeros.")};
    py::class_<PyLoader>(module, "JpegLoader",
                         "Bounded ring of batches, read and decoded by native threads without the GIL.\n\n"
                         "Does not survive fork(): make it in the process that uses it.")
        .def(py::init([types](const py::object& root, const py::sequence& paths, const DecodeSpec& spec,
                              const py::sequence& slots, int threads, const py::object& index) {
                 return std::make_unique<PyLoader>(root, paths, spec, slots, threads, index, types);
             }),
             "root"_a, "paths"_a, "spec"_a, py::kw_only(), "slots"_a, "threads"_a, "index"_a = py::none())
        .def("submit", &PyLoader::submit, "samples"_a, py::kw_only(), "seed"_a, "epoch"_a,
             "Queues one batch; never waits. Batches finish in the order of submission.")
        .def("next", &PyLoader::next, "Waits for the oldest batch; Ctrl-C interrupts.")
        .def("release", &PyLoader::release, "slot"_a, "The slot may be overwritten from now on.")
        .def_property_readonly("pending", &PyLoader::pending, "Batches submitted and not yet handed out.")
        .def("close", &PyLoader::close, "Stops the threads. May be called twice.")
        .def("__enter__", [](const py::object& self) { return self; })
        .def("__exit__", [](PyLoader& self, const py::args&) { self.close(); });
}

}  // namespace

void register_jpeg(py::module_& module) {
    register_spec(module);
    register_decode(module);
    register_seek_index(module);
    register_loader(module);
}

}  // namespace hpcai500::bindings
