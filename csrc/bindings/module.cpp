// Registration only: each part checks its arguments, releases the GIL and calls csrc/core.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
    module.doc() = "hpcai500's compiled core. Types and contracts: _core.pyi.";
    hpcai500::bindings::register_build_info(module);
    hpcai500::bindings::register_spec(module);
    hpcai500::bindings::register_decode(module);
    hpcai500::bindings::register_seek_index(module);
    hpcai500::bindings::register_loader(module);
    hpcai500::bindings::register_detection(module);
    hpcai500::bindings::register_climate(module);
    hpcai500::bindings::register_detection_cuda(module);
    hpcai500::bindings::register_detection_roi_cuda(module);
    hpcai500::bindings::register_compression(module);
    hpcai500::bindings::register_compression_cuda(module);
    hpcai500::bindings::register_images(module);
}
