// The interface between the climate reader and its kernels (convert_kernel.inl), which are compiled for each
// instruction set: stored floats in, normalised values out.
#pragma once

namespace hpcai500 {

/// What a stored float becomes. `copied` keeps all its bits; the others are (value * scale + bias), rounded
/// once to float32 and, for the short types, once more to nearest even; NaN stays NaN, and what float16
/// cannot hold becomes infinite.
enum class Target { copied, float32, float16, bfloat16 };

/// How floats lie in memory: one after the other (little-endian), or shuffled, i.e. first the lowest byte of
/// every value, then the second byte of every value, and so on.
enum class SourceForm { values, planes };

/// A run of values to convert. Nothing needs to be aligned, and nothing outside the run is read or written.
/// Plain pointers and numbers only: the kernels' translation units are compiled for newer processors, so they
/// must not instantiate inline functions that the linker could pick for the rest of the program.
struct ConvertRun {
    const unsigned char* source;  ///< the first value, or its lowest byte
    long plane_stride;            ///< bytes from one plane to the next; planes only
    unsigned char* out;
    long count;
    float scale, bias;
    bool stream;  ///< bypass the cache where whole lines are written; needs publish() afterwards
};

struct ConvertKernel {
    void (*convert[4][2])(const ConvertRun&);  ///< [Target][SourceForm]
    /// To be called after the last run of a thread's work: stores that bypass the cache are not ordered by a
    /// mutex.
    void (*publish)();
};

}  // namespace hpcai500
