#include <unistd.h>

#include <chrono>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings.h"
#include "core/jpeg/loader.h"

namespace py = pybind11;

namespace hpcai500::bindings {
namespace {

// How long Ctrl-C may wait for a batch that does not come.
constexpr std::chrono::milliseconds signal_interval{100};

struct ResultTypes {
    NamedTuple batch, failure;
};

class PyLoader {
  public:
    PyLoader(const py::handle& root, const py::sequence& paths, const DecodeSpec& spec,
             const py::sequence& slots, int threads, const py::object& index, const ResultTypes& types)
        : types_(types), process_(::getpid()) {
        std::size_t batch_size = 0;
        std::vector<void*> memory;
        for (const py::handle slot : slots) {
            if (!py::isinstance<py::array>(slot)) throw py::type_error("slots must be NumPy arrays");
            const auto array = py::reinterpret_borrow<py::array>(slot);
            const std::string name = "slot " + std::to_string(memory.size());
            memory.push_back(
                output_memory(array, spec, name, batch_size, batch_size == 0 ? &batch_size : nullptr));
            slots_.append(array);
        }
        PathTable table;
        for (const py::handle path : paths) table.add(file_name(path));
        const std::string folder = file_name(root);
        auto points = index_of(index);
        const ReleasedGil released;
        loader_ = std::make_unique<Loader>(folder, std::move(table), spec, std::move(memory),
                                           static_cast<int>(batch_size), threads, std::move(points));
    }

    // In a child of fork() the threads do not exist and joining them would wait for ever: the memory is left
    // alone.
    ~PyLoader() {
        if (!loader_) return;
        if (forked()) {
            static_cast<void>(loader_.release());
            return;
        }
        const ReleasedGil released;
        loader_.reset();
    }
    PyLoader(const PyLoader&) = delete;
    PyLoader& operator=(const PyLoader&) = delete;

    void submit(const py::array_t<std::int64_t, py::array::c_style>& samples, const py::int_& seed,
                const py::int_& epoch) {
        refuse_fork();
        if (samples.ndim() != 1) throw py::value_error("samples must be one-dimensional");
        const std::uint64_t seed_value = seed_number(seed);
        const std::uint32_t epoch_value = epoch_number(epoch);
        loader_->submit({samples.data(), static_cast<std::size_t>(samples.size())}, seed_value, epoch_value);
    }

    py::object next() {
        refuse_fork();
        for (;;) {
            std::optional<FinishedBatch> batch;
            {
                const ReleasedGil released;
                batch = loader_->next(signal_interval);
            }
            if (batch) return to_python(*batch);
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        }
    }

    void release(int slot) {
        refuse_fork();
        loader_->release(slot);
    }

    std::size_t pending() const {
        refuse_fork();
        return loader_->pending();
    }

    void close() {
        if (forked()) return;
        const ReleasedGil released;
        loader_->close();
    }

  private:
    bool forked() const { return ::getpid() != process_; }

    void refuse_fork() const {
        if (forked())
            throw std::runtime_error(
                "a JpegLoader does not survive fork(), its threads stay in the parent: make one in the "
                "child");
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
    pid_t process_;
    std::unique_ptr<Loader> loader_;
};

}  // namespace

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
    const ResultTypes types{
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
             py::arg("root"), py::arg("paths"), py::arg("spec"), py::kw_only(), py::arg("slots"),
             py::arg("threads"), py::arg("index") = py::none())
        .def("submit", &PyLoader::submit, py::arg("samples"), py::kw_only(), py::arg("seed"),
             py::arg("epoch"), "Queues one batch; never waits. Batches finish in the order of submission.")
        .def("next", &PyLoader::next, "Waits for the oldest batch; Ctrl-C interrupts.")
        .def("release", &PyLoader::release, py::arg("slot"), "The slot may be overwritten from now on.")
        .def_property_readonly("pending", &PyLoader::pending, "Batches submitted and not yet handed out.")
        .def("close", &PyLoader::close, "Stops the threads. May be called twice.")
        .def("__enter__", [](const py::object& self) { return self; })
        .def("__exit__", [](PyLoader& self, const py::args&) { self.close(); });
}

}  // namespace hpcai500::bindings
