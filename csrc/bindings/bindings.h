// What the binding files share: one function per file that registers its part, and the checks of arguments.
#pragma once

#include <cxxabi.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/jpeg/decode_crop.h"

namespace hpcai500::bindings {

void register_spec(pybind11::module_& module);
void register_decode(pybind11::module_& module);
void register_loader(pybind11::module_& module);
void register_seek_index(pybind11::module_& module);
void register_detection(pybind11::module_& module);
void register_climate(pybind11::module_& module);
void register_detection_cuda(pybind11::module_& module);
void register_detection_roi_cuda(pybind11::module_& module);
void register_compression(pybind11::module_& module);
void register_compression_cuda(pybind11::module_& module);
void register_images(pybind11::module_& module);
void register_build_info(pybind11::module_& module);

/// Lets other threads of Python run for as long as it lives: in place of pybind11's gil_scoped_release.
///
/// Up to Python 3.13, a daemon thread that wants the GIL back while the interpreter is ending is ended by
/// pthread_exit. That unwinds the stack like an exception: out of a destructor it aborts the process, which
/// loses its exit code, and elsewhere it lets go of Python's objects without the GIL and of memory that other
/// threads still use. Here it is caught in the frame that asked for the GIL, and the thread sleeps until the
/// process has ended, as Python 3.14 does by itself. Asking Py_IsFinalizing() first would leave a gap between
/// the question and the wait.
class ReleasedGil {
    template <class Call>
    static auto or_sleep(const Call& call) {
        try {
            return call();
        } catch (const abi::__forced_unwind&) {
            for (;;) ::pause();
        }
    }

  public:
    ReleasedGil() : state_(PyEval_SaveThread()) {}
    ~ReleasedGil() { take_back(); }
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;

    /// PyErr_CheckSignals(), with the GIL: whether a handler of signals has raised an exception. To be called
    /// on the thread that released the GIL.
    bool interrupted() {
        take_back();
        const int raised = or_sleep(PyErr_CheckSignals);
        state_ = PyEval_SaveThread();
        return raised != 0;
    }

  private:
    void take_back() {
        or_sleep([this] { PyEval_RestoreThread(state_); });
    }

    PyThreadState* state_;
};

/// A Python namedtuple class, so that results print, compare, unpack and pickle like any tuple.
class NamedTuple {
  public:
    /// Makes the class, as an attribute of `module`.
    NamedTuple(pybind11::module_& module, const char* name, const char* fields, const char* doc);

    /// An instance; `values` must be as many as the fields. Runs no code in Python, in which a daemon thread
    /// could be ended at exit, as ReleasedGil tells.
    template <class... Values>
    pybind11::object operator()(Values&&... values) const {
        return made_of(pybind11::make_tuple(std::forward<Values>(values)...));
    }

  private:
    pybind11::object made_of(const pybind11::tuple& values) const;

    pybind11::object type_;
};

/// The bytes of any contiguous buffer (bytes, memoryview, mmap, uint8 array), kept alive and unresized
/// meanwhile.
class BytesView {
  public:
    explicit BytesView(const pybind11::handle& source);
    ~BytesView() { PyBuffer_Release(&view_); }
    BytesView(const BytesView&) = delete;
    BytesView& operator=(const BytesView&) = delete;
    std::span<const std::uint8_t> bytes() const {
        return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

  private:
    Py_buffer view_;
};

/// The memory of an output array after the checks: writable, C-contiguous, items and bytes as the spec wants.
/// `images` is how many images it must hold; 0 accepts any whole number and reports it through `found`.
void* output_memory(const pybind11::array& array, const DecodeSpec& spec, const std::string& name,
                    std::size_t images, std::size_t* found = nullptr);

/// Checks the ranges of the three numbers that key the random choices.
SampleKey sample_key(const pybind11::int_& seed, const pybind11::int_& epoch, const pybind11::int_& sample);
std::uint64_t seed_number(const pybind11::int_& seed);
std::uint32_t epoch_number(const pybind11::int_& epoch);

/// A path as the system has it: a name of a file need not be text, so bytes pass and text is encoded as
/// os.fsencode does.
std::string file_name(const pybind11::handle& path);

/// An index as Python holds it: a share of one that others may use, too.
struct PySeekIndex {
    std::shared_ptr<const SeekIndex> index;
};

/// The index that a caller gave, or none.
std::shared_ptr<const SeekIndex> index_of(const pybind11::object& index);

/// Makes the current thread's decoder, once.
ImageDecoder& thread_decoder();

}  // namespace hpcai500::bindings
