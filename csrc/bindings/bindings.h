// What the binding files share: one function per file that registers its part, and the checks of arguments.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/decode_crop.h"

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

/// A Python namedtuple class, so that results print, compare, unpack and pickle like any tuple.
pybind11::object named_tuple(pybind11::module_& module, const char* name, const char* fields,
                             const char* doc);

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
