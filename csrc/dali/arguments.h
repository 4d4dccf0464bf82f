// The settings of a DecodeSpec as arguments of a DALI operator.
#pragma once

#include "core/jpeg/spec.h"
#include "dali/pipeline/operator/op_schema.h"
#include "dali/pipeline/operator/op_spec.h"

namespace hpcai500::dali_plugin {

/// Schema of the arguments that say which part of an image a sample shows: a parent of both operators'.
constexpr const char* crop_arguments = "hpcai500__CropAttr";
/// Schema of those that say what is done with its pixels.
constexpr const char* pixel_arguments = "hpcai500__PixelAttr";

/// Both throw std::invalid_argument, naming the argument, what is allowed and what was given.
DecodeSpec read_crop_arguments(const ::dali::OpSpec& spec);
DecodeSpec read_all_arguments(const ::dali::OpSpec& spec);

/// The type in which DALI holds an image. It has none for bfloat16, whose bits travel as UINT16.
::dali::DALIDataType dali_type(DType dtype);

}  // namespace hpcai500::dali_plugin
