// fn.hpcai500.decode_crop: the image that our own loader makes, inside of a DALI pipeline on the CPU.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "samples.h"

namespace hpcai500::dali_plugin {

class DecodeCrop final : public ::dali::Operator<::dali::CPUBackend> {
  public:
    explicit DecodeCrop(const ::dali::OpSpec& spec)
        : ::dali::Operator<::dali::CPUBackend>(spec), settings_(read_all_arguments(spec)) {
        const auto path = spec.GetRepeatedArgument<int>(index_argument);
        if (!path.empty()) index_ = open_seek_index({path.begin(), path.end()});
    }

  protected:
    bool SetupImpl(std::vector<::dali::OutputDesc>& outputs, const ::dali::Workspace& batch) override {
        check_inputs(batch);
        const int samples = batch.GetInputBatchSize(encoded_input);
        const ::dali::TensorShape<3> shape = settings_.layout == Layout::nchw
                                                 ? ::dali::TensorShape<3>{3, settings_.size, settings_.size}
                                                 : ::dali::TensorShape<3>{settings_.size, settings_.size, 3};
        outputs = {{::dali::uniform_list_shape(samples, shape), dali_type(settings_.dtype)},
                   {::dali::uniform_list_shape(samples, ::dali::TensorShape<1>{said_length()}), DALI_INT32}};
        return true;
    }

    void RunImpl(::dali::Workspace& batch) override {
        auto& images = batch.Output<::dali::CPUBackend>(0);
        auto& status = batch.Output<::dali::CPUBackend>(1);
        images.SetLayout(settings_.layout == Layout::nchw ? "CHW" : "HWC");
        if (index_)
            for (int i = 0; i < status.num_samples(); ++i)
                status.mutable_tensor<std::int32_t>(i)[status_length] =
                    static_cast<std::int32_t>(SeekUse::without);
        threads_.run(
            batch, status,
            [&](ImageDecoder& decoder, const Sample& sample) {
                const int warnings =
                    decoder.decode_crop(sample.jpeg, settings_, sample.key,
                                        images.raw_mutable_tensor(sample.position), index_.get());
                if (index_)
                    status.mutable_tensor<std::int32_t>(sample.position)[status_length] =
                        static_cast<std::int32_t>(decoder.last_seek());
                return warnings;
            },
            [&](const Sample& sample) {
                std::memset(images.raw_mutable_tensor(sample.position), 0, settings_.image_bytes());
            });
    }

  private:
    static constexpr const char* index_argument = "index";

    // With an index, the status has one number more: what became of it.
    std::int64_t said_length() const { return status_length + (index_ ? 1 : 0); }

    const DecodeSpec settings_;
    std::shared_ptr<const SeekIndex> index_;
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
    .AddOptionalArg(
        "index",
        "The bytes of the path of a seek index (`hpcai500 data index`), by which the same images are made "
        "faster; they need not be text. The status has a third number then: 0 used, 1 no points or no use "
        "for them, 2 the index does not know the file, 3 what it says is false.",
        std::vector<int>())
    .AddParent(hpcai500::dali_plugin::crop_arguments)
    .AddParent(hpcai500::dali_plugin::pixel_arguments);
DALI_REGISTER_OPERATOR(hpcai500__DecodeCrop, ::hpcai500::dali_plugin::DecodeCrop, ::dali::CPU);
