// fn.hpcai500.decode_crop: the image that our own loader makes, inside of a DALI pipeline on the CPU.
#include <cstring>
#include <string>
#include <vector>

#include "arguments.h"
#include "samples.h"

namespace hpcai500::dali_plugin {

class DecodeCrop final : public ::dali::Operator<::dali::CPUBackend> {
  public:
    explicit DecodeCrop(const ::dali::OpSpec& spec)
        : ::dali::Operator<::dali::CPUBackend>(spec), settings_(read_all_arguments(spec)) {}

  protected:
    bool SetupImpl(std::vector<::dali::OutputDesc>& outputs, const ::dali::Workspace& batch) override {
        check_inputs(batch);
        const int samples = batch.GetInputBatchSize(encoded_input);
        const ::dali::TensorShape<3> shape = settings_.layout == Layout::nchw
                                                 ? ::dali::TensorShape<3>{3, settings_.size, settings_.size}
                                                 : ::dali::TensorShape<3>{settings_.size, settings_.size, 3};
        outputs = {{::dali::uniform_list_shape(samples, shape), dali_type(settings_.dtype)},
                   {::dali::uniform_list_shape(samples, ::dali::TensorShape<1>{status_length}), DALI_INT32}};
        return true;
    }

    void RunImpl(::dali::Workspace& batch) override {
        auto& images = batch.Output<::dali::CPUBackend>(0);
        images.SetLayout(settings_.layout == Layout::nchw ? "CHW" : "HWC");
        threads_.run(
            batch, batch.Output<::dali::CPUBackend>(1),
            [&](ImageDecoder& decoder, const Sample& sample) {
                return decoder.decode_crop(sample.jpeg, settings_, sample.key,
                                           images.raw_mutable_tensor(sample.position));
            },
            [&](const Sample& sample) {
                std::memset(images.raw_mutable_tensor(sample.position), 0, settings_.image_bytes());
            });
    }

  private:
    const DecodeSpec settings_;
    SampleThreads threads_;
};

}  // namespace hpcai500::dali_plugin

DALI_SCHEMA(hpcai500__DecodeCrop)
    .DocStr(std::string("Decodes JPEG files to crops of one size, in one pass: the images of hpcai500's own "
                        "loader. Gives "
                        "images, and the status of each. ") +
            hpcai500::dali_plugin::status_note)
    .NumInput(2)
    .InputDox(hpcai500::dali_plugin::encoded_input, "encoded", "1D TensorList of uint8",
              hpcai500::dali_plugin::encoded_note)
    .InputDox(hpcai500::dali_plugin::key_input, "keys", "1D TensorList of int64",
              hpcai500::dali_plugin::key_note)
    .NumOutput(2)
    .AddParent(hpcai500::dali_plugin::crop_arguments)
    .AddParent(hpcai500::dali_plugin::pixel_arguments);
DALI_REGISTER_OPERATOR(hpcai500__DecodeCrop, ::hpcai500::dali_plugin::DecodeCrop, ::dali::CPU);
