// The module: how it was built, and its parts. Each part checks its arguments, releases the GIL and calls
// csrc/core.
#include <cstdio>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>
#include <libdeflate.h>

#include <string>

#include "core/vectors/kernels.h"
#include "python.h"

namespace py = pybind11;

#define HPCAI500_TEXT_OF(value) #value
#define HPCAI500_TEXT(value) HPCAI500_TEXT_OF(value)

namespace hpcai500::bindings {
namespace {

py::dict build_info() {
    py::dict info;
    info["compiler"] = HPCAI500_COMPILER;
    info["build_type"] = HPCAI500_BUILD_TYPE;
    info["flags"] = HPCAI500_FLAGS;
    info["libjpeg_turbo"] = HPCAI500_TEXT(LIBJPEG_TURBO_VERSION);
    info["libdeflate"] = LIBDEFLATE_VERSION_STRING;
    info["isa"] = py::str(compiled_isas()).attr("split")();
    const std::string cuda = HPCAI500_CUDA_COMPILER;
    info["cuda_compiler"] = cuda.empty() ? py::object(py::none()) : py::object(py::str(cuda));
    return info;
}

}  // namespace
}  // namespace hpcai500::bindings

PYBIND11_MODULE(_core, module) {
    using namespace hpcai500;
    module.doc() = "hpcai500's compiled core. Types and contracts: _core.pyi.";
    module.attr("__version__") = HPCAI500_VERSION;
    // Chosen at import, so that a wrong HPCAI500_ISA is an import error and not one in the middle of a run.
    module.def(
        "cpu_isa", [isa = kernels().isa] { return isa; },
        "Instruction set of the kernels in use: avx512, avx2, neon or portable.");
    module.def(
        "build_info", &bindings::build_info,
        "How this module was built: compiler, build_type, flags, libjpeg_turbo, libdeflate, isa (list), "
        "cuda_compiler or None.");
    bindings::register_jpeg(module);
    bindings::register_climate(module);
    bindings::register_gradients(module);
    bindings::register_detection(module);
    bindings::register_images(module);
    bindings::register_norms(module);
}
