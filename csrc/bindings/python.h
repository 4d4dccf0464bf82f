// What the files of the bindings share that is no array: a function of each that registers its part, the
// interpreter's lock, exceptions, and arguments that are bytes, paths or names.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace hpcai500::bindings {

void register_jpeg(pybind11::module_& module);
void register_climate(pybind11::module_& module);
void register_gradients(pybind11::module_& module);
void register_detection(pybind11::module_& module);
void register_images(pybind11::module_& module);
void register_norms(pybind11::module_& module);

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

template <class Work>
auto without_gil(const Work& work) {
    const ReleasedGil released;
    return work();
}

/// An object of the core with threads or memory of its own, which are not there in a child of fork().
template <class Native>
class OfOneProcess {
  public:
    OfOneProcess(const char* name, std::unique_ptr<Native> native)
        : name_(name), process_(::getpid()), native_(std::move(native)) {}
    // In a child, joining the threads would wait for ever: the object is left alone.
    ~OfOneProcess() {
        if (forked()) {
            static_cast<void>(native_.release());
            return;
        }
        const ReleasedGil released;
        native_.reset();
    }
    OfOneProcess(const OfOneProcess&) = delete;
    OfOneProcess& operator=(const OfOneProcess&) = delete;

    /// Throws std::runtime_error in a child of fork().
    Native& operator*() const {
        if (forked())
            throw std::runtime_error(std::string("a ") + name_ +
                                     " does not survive fork(): make one in the process that uses it");
        return *native_;
    }
    Native* operator->() const { return &**this; }
    /// For what can be asked in a child, too.
    const Native& still() const { return *native_; }

    void close() {
        if (forked()) return;
        const ReleasedGil released;
        native_->close();
    }

  private:
    bool forked() const { return ::getpid() != process_; }

    const char* name_;
    pid_t process_;
    std::unique_ptr<Native> native_;
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

/// A new class below ValueError, as an attribute of `module`; it lives as long as the process, as a
/// translator of exceptions may run until the interpreter ends.
PyObject* make_error(pybind11::module_& module, const char* name, const char* doc);

/// Where the core throws `Error`, Python sees what `instance_of(class, error)` makes, of the class that
/// make_error() has made.
template <class Error, auto instance_of>
void register_error(pybind11::module_& module, const char* name, const char* doc) {
    static PyObject* const type = make_error(module, name, doc);
    pybind11::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error& error) {
            const pybind11::object instance = instance_of(pybind11::handle(type), error);
            PyErr_SetObject(type, instance.ptr());
        }
    });
}

/// The bytes of any contiguous buffer (bytes, memoryview, mmap, uint8 array), kept alive and unresized
/// meanwhile.
class BytesView {
  public:
    explicit BytesView(const pybind11::handle& source) {
        if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_SIMPLE) != 0) throw pybind11::error_already_set();
    }
    ~BytesView() { PyBuffer_Release(&view_); }
    BytesView(const BytesView&) = delete;
    BytesView& operator=(const BytesView&) = delete;
    std::span<const std::uint8_t> bytes() const {
        return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

  private:
    Py_buffer view_;
};

/// str(value)
std::string text_of(const pybind11::handle& value);
/// "<class 'list'>"
std::string class_of(const pybind11::handle& value);

/// A path as the system has it: a name of a file need not be text, so bytes pass and text is encoded as
/// os.fsencode does.
std::string file_name(const pybind11::handle& path);

/// A value of the core, and its name in Python.
template <class Value>
struct Choice {
    const char* name;
    Value value;
};

/// The value of a name. Throws value_error: "`must_be` `names`; got 'name'".
template <class Value, std::size_t count>
Value parse(const Choice<Value> (&choices)[count], const char* must_be, const std::string& name) {
    std::string names;
    for (const auto& choice : choices) {
        if (name == choice.name) return choice.value;
        names += (names.empty() ? "" : ", ") + std::string(choice.name);
    }
    throw pybind11::value_error(std::string(must_be) + " " + names + "; got '" + name + "'");
}

template <class Value, std::size_t count>
const char* name_of(const Choice<Value> (&choices)[count], Value value) {
    for (const auto& choice : choices)
        if (choice.value == value) return choice.name;
    return "";
}

}  // namespace hpcai500::bindings
