// All inner loops, for one instruction set. Included by one file of each, inside its unnamed namespace.

#include "detection_vectors.inl"
#include "roi_kernel.inl"
#include "suppress_kernel.inl"

#define HPCAI500_DETECTION_KERNEL(name)                                          \
    {                                                                            \
        name, suppress<float, std::int32_t>, suppress<double, std::int64_t>,     \
            {{pool_channels_first<Float32>, pool_channels_last<Float32>},        \
             {pool_channels_first<Float16>, pool_channels_last<Float16>},        \
             {pool_channels_first<BFloat16>, pool_channels_last<BFloat16>}},     \
            {pool_channels_first<Float64>, pool_channels_last<Float64>},         \
            {{spread_channels_first<Float32>, spread_channels_last<Float32>},    \
             {spread_channels_first<Float16>, spread_channels_last<Float16>},    \
             {spread_channels_first<BFloat16>, spread_channels_last<BFloat16>}}, \
            {spread_channels_first<Float64>, spread_channels_last<Float64>}, {   \
            narrow_all<Float32>, narrow_all<Float16>, narrow_all<BFloat16>       \
        }                                                                        \
    }
