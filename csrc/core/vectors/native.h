// The types of the vectors that kernels compute with. The header of an instruction set (portable.h, avx2.h,
// avx512.h, neon.h) says how many bytes its registers have, includes this file, adds the few operations for
// which the compiler has no operator, and includes vec16.h, which says what a kernel can use.
//
// All names are in an unnamed namespace: the linker must not give one instruction set's functions to
// another's kernels, nor to the rest of the program.
#include <cstdint>
#include <cstring>

#include "inline.h"

namespace hpcai500 {
namespace {

// One register. Operators of the language (+, *, >, ?:, ...) work on each lane.
typedef float Floats __attribute__((vector_size(vector_bytes)));
typedef double Doubles __attribute__((vector_size(vector_bytes)));
typedef std::int32_t Ints __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t Bits __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t Words __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t HalfWords __attribute__((vector_size(vector_bytes / 2)));

constexpr int lanes = vector_bytes / 4;
/// Registers of 16 values.
constexpr int parts = 16 / lanes;
/// Independent sums that a loop keeps in registers.
constexpr int sums_in_registers = parts == 1 ? 4 : 8;

struct Vec16 {
    Floats part[parts];
};
struct Vec32 {
    Vec16 half[2];
    HPCAI500_INLINE Floats part(int i) const { return half[i / parts].part[i % parts]; }
};
struct Ints16 {
    Ints part[parts];
};
/// Sums of the squares of 32 values, one for each.
struct Squares32 {
    Doubles part[4 * parts];
};

template <class Vector, class Value>
HPCAI500_INLINE Vector load_vector(const Value* from) {
    Vector result;
    std::memcpy(&result, from, sizeof result);
    return result;
}
template <class Vector, class Value>
HPCAI500_INLINE void store_vector(Value* to, Vector values) {
    std::memcpy(to, &values, sizeof values);
}

/// The value in each lane. To 0 it cannot be added: -0 would become 0.
HPCAI500_INLINE Floats broadcast(float value) {
    return value - Floats{};
}
/// `b` where one of both is NaN, as x86 does it.
template <class Vector>
HPCAI500_INLINE Vector larger(Vector a, Vector b) {
    return a > b ? a : b;
}
template <class Vector>
HPCAI500_INLINE constexpr Vector smaller(Vector a, Vector b) {
    return a < b ? a : b;
}

/// The same bits as another type.
template <class Vector, class Other>
HPCAI500_INLINE Vector as(Other values) {
    return reinterpret_cast<Vector>(values);
}

}  // namespace
}  // namespace hpcai500
