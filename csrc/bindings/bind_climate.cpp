#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "climate_arguments.h"
#include "core/climate/climate_reader.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

py::object or_none(std::int64_t number) {
    return number < 0 ? py::object(py::none()) : py::object(py::int_(number));
}

std::string text_of(const ClimateError& error) {
    const ClimatePlace& place = error.place();
    std::string text = std::string(name(error.kind())) + ": file " + std::to_string(place.file);
    if (place.image >= 0) text += ", image " + std::to_string(place.image);
    if (place.channel >= 0) text += ", channel " + std::to_string(place.channel);
    if (place.chunk) text += ", chunk " + std::string(py::str(py::tuple(py::cast(*place.chunk))));
    return text + ": " + error.what();
}

// ClimateError is a ValueError that also says what failed, and where.
void register_error(py::module_& module) {
    PyObject* const type = PyErr_NewExceptionWithDoc("hpcai500._core.ClimateError",
                                                     "A climate image that cannot be read. `kind` is "
                                                     "'truncated', 'corrupt', 'unreadable' or 'unsupported'.",
                                                     PyExc_ValueError, nullptr);
    if (type == nullptr) throw py::error_already_set();
    // Lives as long as the process: the translator below may run until the interpreter ends.
    static PyObject* climate_error = type;
    module.attr("ClimateError") = py::handle(type);
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const ClimateError& error) {
            const ClimatePlace& place = error.place();
            const py::object instance = py::reinterpret_borrow<py::object>(climate_error)(text_of(error));
            instance.attr("kind") = name(error.kind());
            instance.attr("file") = place.file;
            instance.attr("image") = or_none(place.image);
            instance.attr("channel") = or_none(place.channel);
            instance.attr("chunk") =
                place.chunk ? py::object(py::tuple(py::cast(*place.chunk))) : py::object(py::none());
            instance.attr("reason") = error.what();
            PyErr_SetObject(climate_error, instance.ptr());
        }
    });
}

class PyClimateReader {
  public:
    PyClimateReader(std::vector<ClimateFile> files, const ClimateSpec& spec, DType dtype)
        : dtype_(dtype), process_(::getpid()) {
        const ReleasedGil released;
        reader_ = std::make_unique<ClimateReader>(std::move(files), spec);
    }

    // In a child of fork() the threads do not exist and joining them would wait for ever: the memory is left
    // alone.
    ~PyClimateReader() {
        if (!reader_) return;
        if (forked()) {
            static_cast<void>(reader_.release());
            return;
        }
        const ReleasedGil released;
        reader_.reset();
    }
    PyClimateReader(const PyClimateReader&) = delete;
    PyClimateReader& operator=(const PyClimateReader&) = delete;

    py::tuple image_shape() const {
        return py::make_tuple(reader_->channels(), reader_->rows(), reader_->width());
    }
    std::uint64_t chunks_inflated() const { return reader_->chunks_inflated(); }

    void read(const Indices& files, const Indices& images, const py::array& out,
              const std::optional<Indices>& places, const std::optional<Indices>& rolls) {
        refuse_fork();
        const auto requests = image_requests(files, images, places, rolls, reader_->columns());
        const ImageMemory memory = image_memory(out, "out", dtype_, true, extents(reader_->width()));
        check_count(requests, places, memory.images);
        run([&](const WorkerPool::Stop& stop) {
            return reader_->read(requests, memory.images, memory.data, stop);
        });
    }

    void read_window(std::int64_t file, std::int64_t first, std::int64_t count, const py::array& out,
                     const std::array<std::size_t, 3>& part) {
        refuse_fork();
        const ImageMemory memory = image_memory(out, "out", dtype_, true, extents(reader_->columns()));
        if (memory.images != count)
            throw py::value_error("out must have room for " + std::to_string(count) + " images, got " +
                                  std::to_string(memory.images));
        run([&](const WorkerPool::Stop& stop) {
            return reader_->read_window(file, first, count, {part[0], part[1], part[2]}, memory.data, stop);
        });
    }

    void take(const py::array& window, const Indices& positions, const py::array& out,
              const std::optional<Indices>& places, const std::optional<Indices>& rolls) {
        refuse_fork();
        const auto requests = image_requests(std::nullopt, positions, places, rolls, reader_->columns());
        const ImageMemory from = image_memory(window, "window", dtype_, false, extents(reader_->columns()));
        const ImageMemory memory = image_memory(out, "out", dtype_, true, extents(reader_->width()));
        check_count(requests, places, memory.images);
        run([&](const WorkerPool::Stop& stop) {
            return reader_->take(from.data, from.images, requests, memory.images, memory.data, stop);
        });
    }

    void close() {
        if (forked()) return;
        const ReleasedGil released;
        reader_->close();
    }

  private:
    bool forked() const { return ::getpid() != process_; }

    void refuse_fork() const {
        if (forked())
            throw std::runtime_error(
                "a ClimateReader does not survive fork(), its threads stay in the parent: make one in the "
                "child");
    }

    ImageExtents extents(std::int64_t columns) const {
        return {reader_->channels(), reader_->rows(), columns};
    }

    // Without the GIL; Ctrl-C ends it after the pieces that the threads are working on.
    template <class Job>
    void run(const Job& job) {
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
    pid_t process_;
    std::unique_ptr<ClimateReader> reader_;
};

}  // namespace

void register_climate(py::module_& module) {
    register_error(module);
    py::class_<PyClimateReader>(
        module, "ClimateReader",
        "Reads 16-channel images by chunk address, in native threads, without HDF5.\n\n"
        "Does not survive fork(): make it in the process that uses it.")
        .def(py::init([](const py::sequence& files, const std::vector<int>& channels,
                         const std::optional<std::vector<double>>& mean,
                         const std::optional<std::vector<double>>& std, const std::string& dtype,
                         std::int64_t left, std::int64_t width, int threads) {
                 ClimateSpec spec{channels,
                                  mean.value_or(std::vector<double>{}),
                                  std.value_or(std::vector<double>{}),
                                  float_type(dtype),
                                  left,
                                  width,
                                  threads};
                 return std::make_unique<PyClimateReader>(climate_files(files), spec, spec.dtype);
             }),
             py::arg("files"), py::kw_only(), py::arg("channels"), py::arg("mean"), py::arg("std"),
             py::arg("dtype"), py::arg("left"), py::arg("width"), py::arg("threads"))
        .def_property_readonly("image_shape", &PyClimateReader::image_shape,
                               "Of one image that read() makes.")
        .def_property_readonly("chunks_inflated", &PyClimateReader::chunks_inflated,
                               "Chunks whose filters were undone since the reader was made.")
        .def("read", &PyClimateReader::read, py::arg("files"), py::arg("images"), py::arg("out"),
             py::kw_only(), py::arg("places") = py::none(), py::arg("rolls") = py::none(),
             "Reads images into `out`.")
        .def("read_window", &PyClimateReader::read_window, py::arg("file"), py::arg("first"),
             py::arg("count"), py::arg("out"), py::kw_only(),
             py::arg("part") = std::array<std::size_t, 3>{0, 1, 1},
             "Reads images first..first + count of one file, whole, each chunk once.")
        .def("take", &PyClimateReader::take, py::arg("window"), py::arg("positions"), py::arg("out"),
             py::kw_only(), py::arg("places") = py::none(), py::arg("rolls") = py::none(),
             "Copies images out of a window, rolled and cropped.")
        .def("close", &PyClimateReader::close, "Stops the threads. May be called twice.")
        .def("__enter__", [](const py::object& self) { return self; })
        .def("__exit__", [](PyClimateReader& self, const py::args&) { self.close(); });
}

}  // namespace hpcai500::bindings
