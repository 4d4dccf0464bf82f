// fn.hpcai500.draw_crop: which part of each image its sample shows, from the header alone, for a decoder that
// reads regions: the same boxes as decode_crop's.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "arguments.h"
#include "blank_jpeg.h"
#include "core/jpeg/spec.h"
#include "samples.h"

namespace hpcai500::dali_plugin {
namespace {

enum Output { encoded, anchor, shape, begin, end, flip, status, output_count };

// The pixels of an axis that a box needs. A random crop ends at its own edges, around a centre crop the
// filter sees what lies there: its reach is one output pixel, at least one of the source.
struct Window {
    std::int32_t begin, length;
};

Window window(CropMode mode, double from, double extent, int size, int limit) {
    const double reach = mode == CropMode::centre ? std::max(1.0, extent / size) + 1 : 0;
    const int first = std::max(0, static_cast<int>(std::floor(from - reach)));
    const int last = std::min(limit, static_cast<int>(std::ceil(from + extent + reach)));
    return {first, last - first};
}

}  // namespace

class DrawCrop final : public ::dali::Operator<::dali::CPUBackend> {
  public:
    explicit DrawCrop(const ::dali::OpSpec& spec)
        : ::dali::Operator<::dali::CPUBackend>(spec), settings_(read_crop_arguments(spec)) {}

  protected:
    bool SetupImpl(std::vector<::dali::OutputDesc>& outputs, const ::dali::Workspace& batch) override {
        check_inputs(batch);
        const int samples = batch.GetInputBatchSize(encoded_input);
        const auto pairs = ::dali::uniform_list_shape(samples, ::dali::TensorShape<1>{2});
        outputs.resize(output_count);
        for (const int axes : {anchor, shape, status}) outputs[axes] = {pairs, DALI_INT32};
        for (const int axes : {begin, end}) outputs[axes] = {pairs, DALI_FLOAT};
        outputs[flip] = {::dali::uniform_list_shape(samples, ::dali::TensorShape<0>{}), DALI_INT32};
        outputs[encoded].type = DALI_UINT8;
        // Room for the blank image in the place of a file that has no header; what follows an image is
        // ignored.
        auto sizes = batch.Input<::dali::CPUBackend>(encoded_input).shape();
        for (int i = 0; i < samples; ++i)
            sizes.tensor_shape_span(i)[0] =
                std::max(sizes.tensor_shape_span(i)[0], static_cast<std::int64_t>(blank_jpeg.size()));
        outputs[encoded].shape = sizes;
        return true;
    }

    void RunImpl(::dali::Workspace& batch) override {
        threads_.run(
            batch, batch.Output<::dali::CPUBackend>(status),
            [&](ImageDecoder& decoder, const Sample& sample) {
                const JpegHeader header = decoder.probe(sample.jpeg);
                const CropBox box = crop_box(settings_, header.width, header.height, sample.key);
                write(batch, sample.position, sample.jpeg, box, header.width, header.height);
                return 0;
            },
            [&](const Sample& sample) {
                write(batch, sample.position, blank_jpeg, {0, 0, blank_side, blank_side, false}, blank_side,
                      blank_side);
            });
    }

  private:
    void write(::dali::Workspace& batch, int position, std::span<const std::uint8_t> jpeg, const CropBox& box,
               int width, int height) const {
        auto& files = batch.Output<::dali::CPUBackend>(encoded);
        auto* const file = files.mutable_tensor<std::uint8_t>(position);
        std::memcpy(file, jpeg.data(), jpeg.size());
        const auto room = static_cast<std::size_t>(files.tensor_shape_span(position)[0]);
        std::memset(file + jpeg.size(), 0, room - jpeg.size());

        const Window rows = window(settings_.mode, box.y, box.height, settings_.size, height);
        const Window columns = window(settings_.mode, box.x, box.width, settings_.size, width);
        write_pair<std::int32_t>(batch, anchor, position, rows.begin, columns.begin);
        write_pair<std::int32_t>(batch, shape, position, rows.length, columns.length);
        const double top = box.y - rows.begin, left = box.x - columns.begin;
        write_pair<float>(batch, begin, position, top, left);
        write_pair<float>(batch, end, position, top + box.height, left + box.width);
        *batch.Output<::dali::CPUBackend>(flip).mutable_tensor<std::int32_t>(position) = box.flip ? 1 : 0;
    }

    // Row first, as DALI has the axes of an image.
    template <class Number>
    static void write_pair(::dali::Workspace& batch, int output, int position, auto first, auto second) {
        auto* const to = batch.Output<::dali::CPUBackend>(output).mutable_tensor<Number>(position);
        to[0] = static_cast<Number>(first);
        to[1] = static_cast<Number>(second);
    }

    const DecodeSpec settings_;
    SampleThreads threads_;
};

}  // namespace hpcai500::dali_plugin

DALI_SCHEMA(hpcai500__DrawCrop)
    .DocStr(
        std::string(
            "Draws the crop of each sample from the headers of JPEG files. Gives the files, with a blank "
            "image "
            "in the place of one without a header; anchor and shape of the window of pixels to decode (row, "
            "column); begin and end of the crop in that window, which may be fractions; whether to mirror; "
            "and the status of each. ") +
        hpcai500::dali_plugin::status_note)
    .NumInput(2)
    .InputDox(hpcai500::dali_plugin::encoded_input, "encoded", "1D TensorList of uint8",
              hpcai500::dali_plugin::encoded_note)
    .InputDox(hpcai500::dali_plugin::key_input, "keys", "1D TensorList of int64",
              hpcai500::dali_plugin::key_note)
    .NumOutput(7)
    .AddParent(hpcai500::dali_plugin::crop_arguments);
DALI_REGISTER_OPERATOR(hpcai500__DrawCrop, ::hpcai500::dali_plugin::DrawCrop, ::dali::CPU);
