#include <cstdio>
// jpeglib.h uses FILE and size_t without including their headers.
#include <jpeglib.h>
#include <libdeflate.h>

#include "bindings.h"
#include "core/isa.h"

namespace py = pybind11;

#define HPCAI500_TEXT_OF(value) #value
#define HPCAI500_TEXT(value) HPCAI500_TEXT_OF(value)

namespace hpcai500::bindings {

void register_build_info(py::module_& module) {
    module.attr("__version__") = HPCAI500_VERSION;
    // Chosen at import, so that a wrong HPCAI500_ISA is an import error and not one in the middle of a run.
    const char* isa = name(chosen_isa());
    module.def(
        "cpu_isa", [isa] { return isa; }, "Instruction set of the kernels in use: avx512, avx2, neon or portable.");
    module.def(
        "build_info",
        [] {
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
        },
        "How this module was built: compiler, build_type, flags, libjpeg_turbo, libdeflate, isa (list), "
        "cuda_compiler or None.");
}

}  // namespace hpcai500::bindings
