// CUDA's vector types, as far as our kernels use them.
#pragma once

#define HPCAI500_VECTOR(name, Type, count, bytes) \
    struct alignas(bytes) name {                  \
        Type HPCAI500_MEMBERS_##count;            \
    };
#define HPCAI500_MEMBERS_2 x, y
#define HPCAI500_MEMBERS_3 x, y, z
#define HPCAI500_MEMBERS_4 x, y, z, w

HPCAI500_VECTOR(char4, signed char, 4, 4)
HPCAI500_VECTOR(uchar2, unsigned char, 2, 2)
HPCAI500_VECTOR(uchar4, unsigned char, 4, 4)
HPCAI500_VECTOR(ushort2, unsigned short, 2, 4)
HPCAI500_VECTOR(ushort4, unsigned short, 4, 8)
HPCAI500_VECTOR(int2, int, 2, 8)
HPCAI500_VECTOR(int4, int, 4, 16)
HPCAI500_VECTOR(uint2, unsigned, 2, 8)
HPCAI500_VECTOR(uint3, unsigned, 3, 4)
HPCAI500_VECTOR(uint4, unsigned, 4, 16)
HPCAI500_VECTOR(longlong2, long long, 2, 16)
HPCAI500_VECTOR(ulonglong2, unsigned long long, 2, 16)
HPCAI500_VECTOR(float2, float, 2, 8)
HPCAI500_VECTOR(float3, float, 3, 4)
HPCAI500_VECTOR(float4, float, 4, 16)
HPCAI500_VECTOR(double2, double, 2, 16)

#undef HPCAI500_VECTOR
#undef HPCAI500_MEMBERS_2
#undef HPCAI500_MEMBERS_3
#undef HPCAI500_MEMBERS_4

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
        : x(width), y(height), z(depth) {}
};

inline char4 make_char4(signed char x, signed char y, signed char z, signed char w) {
    return {x, y, z, w};
}
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
    return {x, y, z, w};
}
inline ushort2 make_ushort2(unsigned short x, unsigned short y) {
    return {x, y};
}
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
    return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
    return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) {
    return {x, y, z};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float3 make_float3(float x, float y, float z) {
    return {x, y, z};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline double2 make_double2(double x, double y) {
    return {x, y};
}
