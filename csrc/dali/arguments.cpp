#include "arguments.h"

#include <array>
#include <charconv>
#include <stdexcept>
#include <string>
#include <vector>

namespace hpcai500::dali_plugin {
namespace {

const DecodeSpec defaults;

std::string with_note(const std::string& meaning) {
    return meaning +
           " Numbers are text: as numbers, DALI would round them to 24 bits, and crops would differ.";
}

// The shortest text that is read back as the same number.
std::string text_of(double value) {
    std::array<char, 32> letters{};
    const auto end = std::to_chars(letters.data(), letters.data() + letters.size(), value).ptr;
    return {letters.data(), end};
}

template <std::size_t count>
std::vector<std::string> texts_of(const std::array<double, count>& values) {
    std::vector<std::string> texts;
    for (const double value : values) texts.push_back(text_of(value));
    return texts;
}

double number_of(const char* argument, const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    if (read.ec != std::errc{} || read.ptr != end)
        throw std::invalid_argument(std::string(argument) + " must be a number, got '" + text + "'");
    return value;
}

template <std::size_t count>
std::array<double, count> numbers_of(const ::dali::OpSpec& spec, const char* argument) {
    const auto texts = spec.GetRepeatedArgument<std::string>(argument);
    if (texts.size() != count)
        throw std::invalid_argument(std::string(argument) + " must be " + std::to_string(count) +
                                    " numbers, got " + std::to_string(texts.size()));
    std::array<double, count> values{};
    for (std::size_t i = 0; i < count; ++i) values[i] = number_of(argument, texts[i]);
    return values;
}

template <class Value>
struct Choice {
    const char* name;
    Value value;
};

constexpr Choice<CropMode> modes[] = {{"random", CropMode::random}, {"centre", CropMode::centre}};
constexpr Choice<Layout> layouts[] = {{"CHW", Layout::nchw}, {"HWC", Layout::nhwc}};
constexpr Choice<DType> dtypes[] = {{"float32", DType::float32},
                                    {"float16", DType::float16},
                                    {"bfloat16", DType::bfloat16},
                                    {"uint8", DType::uint8}};

template <class Value, std::size_t count>
Value chosen(const ::dali::OpSpec& spec, const char* argument, const Choice<Value> (&choices)[count]) {
    const auto name = spec.GetArgument<std::string>(argument);
    std::string allowed;
    for (const auto& choice : choices) {
        if (name == choice.name) return choice.value;
        allowed += (allowed.empty() ? "" : ", ") + std::string(choice.name);
    }
    throw std::invalid_argument(std::string(argument) + " must be one of " + allowed + ", got '" + name +
                                "'");
}

DecodeSpec crop_settings(const ::dali::OpSpec& spec) {
    DecodeSpec result;
    result.size = spec.GetArgument<int>("size");
    result.mode = chosen(spec, "mode", modes);
    result.area = numbers_of<2>(spec, "area");
    result.ratio = numbers_of<2>(spec, "ratio");
    result.flip_probability =
        number_of("flip_probability", spec.GetArgument<std::string>("flip_probability"));
    result.resize_shorter = spec.GetArgument<int>("resize_shorter");
    return result;
}

}  // namespace

DecodeSpec read_crop_arguments(const ::dali::OpSpec& spec) {
    const DecodeSpec result = crop_settings(spec);
    validate(result);
    return result;
}

DecodeSpec read_all_arguments(const ::dali::OpSpec& spec) {
    DecodeSpec result = crop_settings(spec);
    result.mean = numbers_of<3>(spec, "mean");
    result.std = numbers_of<3>(spec, "std");
    result.dtype = chosen(spec, "dtype", dtypes);
    result.layout = chosen(spec, "layout", layouts);
    result.dct_scaling = spec.GetArgument<bool>("dct_scaling");
    validate(result);
    return result;
}

::dali::DALIDataType dali_type(DType dtype) {
    switch (dtype) {
        case DType::float32:
            return DALI_FLOAT;
        case DType::float16:
            return DALI_FLOAT16;
        case DType::bfloat16:
            return DALI_UINT16;
        case DType::uint8:
            return DALI_UINT8;
    }
    return DALI_NO_TYPE;
}

}  // namespace hpcai500::dali_plugin

// The operators' schemas name them as parents. Defaults are the core's.
DALI_SCHEMA(hpcai500__CropAttr)
    .DocStr("Which part of an image a sample shows.")
    .AddOptionalArg("size", "Side of the output in pixels.", hpcai500::dali_plugin::defaults.size)
    .AddOptionalArg("mode", "`random`: area, ratio and flip are drawn; `centre`: the middle of the image.",
                    "random")
    .AddOptionalArg("area", hpcai500::dali_plugin::with_note("Least and greatest part of the image's area."),
                    hpcai500::dali_plugin::texts_of(hpcai500::dali_plugin::defaults.area))
    .AddOptionalArg("ratio",
                    hpcai500::dali_plugin::with_note("Least and greatest ratio of width and height."),
                    hpcai500::dali_plugin::texts_of(hpcai500::dali_plugin::defaults.ratio))
    .AddOptionalArg("flip_probability", hpcai500::dali_plugin::with_note("How often an image is mirrored."),
                    hpcai500::dali_plugin::text_of(hpcai500::dali_plugin::defaults.flip_probability))
    .AddOptionalArg("resize_shorter", "For `centre`: what the shorter side would be resized to, in pixels.",
                    hpcai500::dali_plugin::defaults.resize_shorter);

DALI_SCHEMA(hpcai500__PixelAttr)
    .DocStr("What is done with the pixels of a crop.")
    .AddOptionalArg("mean", hpcai500::dali_plugin::with_note("Of each channel, in levels."),
                    hpcai500::dali_plugin::texts_of(hpcai500::dali_plugin::defaults.mean))
    .AddOptionalArg("std", hpcai500::dali_plugin::with_note("Of each channel, in levels."),
                    hpcai500::dali_plugin::texts_of(hpcai500::dali_plugin::defaults.std))
    .AddOptionalArg(
        "dtype",
        "`float32`, `float16`, `bfloat16` (its bits, as UINT16) or `uint8` (levels; mean and std have no "
        "meaning).",
        "float32")
    .AddOptionalArg("layout", "`CHW` or `HWC`.", "CHW")
    .AddOptionalArg("dct_scaling", "Decode large images at 1/2 or 1/4 of their size.",
                    hpcai500::dali_plugin::defaults.dct_scaling);
