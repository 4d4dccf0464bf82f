#include "samples.h"

#include <limits>
#include <stdexcept>
#include <string>

namespace hpcai500::dali_plugin {
namespace {

constexpr int key_length = 3;

SampleKey key_of(const std::int64_t* numbers) {
    // The bits of an unsigned seed: DALI's inputs from Python are signed.
    return {static_cast<std::uint64_t>(numbers[2]), static_cast<std::uint32_t>(numbers[1]),
            static_cast<std::uint64_t>(numbers[0])};
}

void check_key(const std::int64_t* numbers) {
    if (numbers[0] < 0 || numbers[1] < 0 || numbers[1] > std::numeric_limits<std::uint32_t>::max())
        throw std::invalid_argument(
            "a key must be a sample (at least 0), an epoch (below 2^32) and a seed, got " +
            std::to_string(numbers[0]) + ", " + std::to_string(numbers[1]) + ", " +
            std::to_string(numbers[2]));
}

}  // namespace

void check_inputs(const ::dali::Workspace& batch) {
    const auto& encoded = batch.Input<::dali::CPUBackend>(encoded_input);
    const auto& keys = batch.Input<::dali::CPUBackend>(key_input);
    if (encoded.type() != DALI_UINT8 || encoded.sample_dim() != 1)
        throw std::invalid_argument("encoded files must be one-dimensional and of type uint8");
    if (keys.type() != DALI_INT64 || keys.sample_dim() != 1)
        throw std::invalid_argument("keys must be one-dimensional and of type int64");
    for (int i = 0; i < keys.num_samples(); ++i) {
        if (keys.tensor_shape_span(i)[0] != key_length)
            throw std::invalid_argument("a key must have 3 numbers: sample, epoch, seed");
        check_key(keys.tensor<std::int64_t>(i));
    }
}

void SampleThreads::run(::dali::Workspace& batch, ::dali::TensorList<::dali::CPUBackend>& status,
                        const std::function<int(ImageDecoder&, const Sample&)>& make,
                        const std::function<void(const Sample&)>& failed) {
    const auto& encoded = batch.Input<::dali::CPUBackend>(encoded_input);
    const auto& keys = batch.Input<::dali::CPUBackend>(key_input);
    auto& pool = batch.GetThreadPool();
    while (decoders_.size() < static_cast<std::size_t>(pool.NumThreads()))
        decoders_.push_back(std::make_unique<ImageDecoder>());
    for (int i = 0; i < encoded.num_samples(); ++i) {
        const std::int64_t bytes = encoded.tensor_shape_span(i)[0];
        const Sample sample{i,
                            {encoded.tensor<std::uint8_t>(i), static_cast<std::size_t>(bytes)},
                            key_of(keys.tensor<std::int64_t>(i))};
        auto* const said = status.mutable_tensor<std::int32_t>(i);
        pool.AddWork(
            [this, sample, said, &make, &failed](int thread) {
                said[0] = said[1] = 0;
                try {
                    said[1] = make(*decoders_[static_cast<std::size_t>(thread)], sample);
                    return;
                } catch (const DecodeError& error) {
                    said[0] = 1 + static_cast<std::int32_t>(error.kind());
                } catch (const std::bad_alloc&) {
                    said[0] = 1 + static_cast<std::int32_t>(FailureKind::memory);
                } catch (const std::exception&) {
                    said[0] = 1 + static_cast<std::int32_t>(FailureKind::corrupt);
                }
                failed(sample);
            },
            bytes);
    }
    pool.RunAll();
}

}  // namespace hpcai500::dali_plugin
