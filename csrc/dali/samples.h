// What both operators do with a batch: inputs, threads, and what is said of each sample.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/jpeg/decode_crop.h"
#include "dali/pipeline/operator/operator.h"

namespace hpcai500::dali_plugin {

/// Inputs of both operators: the bytes of a file, and whose they are.
constexpr int encoded_input = 0, key_input = 1;

/// Length of the status of a sample: what failed (0: nothing; else 1 + FailureKind), and libjpeg's warnings.
constexpr int status_length = 2;

/// What the schemas of both operators say of their inputs and of the status.
constexpr const char* encoded_note = "The bytes of each file.";
constexpr const char* key_note =
    "Of each sample: its number, the epoch, and the seed (the bits of an unsigned number). What is drawn "
    "depends on "
    "nothing else.";
constexpr const char* status_note =
    "The status of a sample is two numbers: what failed (0 nothing, 1 unsupported, 2 truncated, 3 "
    "unreadable, 4 "
    "corrupt, 5 no memory), and libjpeg's warnings.";

/// One sample of a batch.
struct Sample {
    int position;
    std::span<const std::uint8_t> jpeg;
    SampleKey key;
};

/// A decoder for each thread of DALI's pool, kept from batch to batch.
class SampleThreads {
  public:
    /// Makes every sample of the batch, the largest files first. `make` returns the number of warnings and
    /// throws DecodeError; `failed` is told of a sample that it could not make. `status` receives one status
    /// a sample.
    void run(::dali::Workspace& batch, ::dali::TensorList<::dali::CPUBackend>& status,
             const std::function<int(ImageDecoder&, const Sample&)>& make,
             const std::function<void(const Sample&)>& failed);

  private:
    std::vector<std::unique_ptr<ImageDecoder>> decoders_;
};

/// Throws std::invalid_argument unless the inputs are bytes and keys.
void check_inputs(const ::dali::Workspace& batch);

}  // namespace hpcai500::dali_plugin
