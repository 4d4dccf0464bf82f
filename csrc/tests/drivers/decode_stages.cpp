// What the time of random-resized crops goes to: `decode_stages PASSES INDEX FILE...`, for
// benchmarks/decode_stages.py.
//
// One thread makes a crop of each file in each pass, with and without the seek index. A line of stdout a pass
// and way: "index" or "whole", and the nanoseconds of all its crops: in total; copying out stuffed zeros;
// passing over blocks; reading codes of blocks that are kept; those and making samples of them. Each is from
// a run of its own, so that the clock is only read where its stage is.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "baseline_kernels.h"
#include "core/jpeg/baseline/decoder.h"
#include "core/jpeg/decode_crop.h"

// The library's own, under another name: a program has one unstuff(), and here it is the one with a clock.
#define unstuff unstuff_without_clock
#include "core/jpeg/baseline/unstuff.cpp"
#undef unstuff

namespace hpcai500 {
namespace {

using Clock = std::chrono::steady_clock;

/// Adds up what a stage takes, where that is asked for.
struct Stage {
    bool timed = false;
    std::int64_t nanoseconds = 0;

    template <class Work>
    auto run(const Work& work) {
        if (!timed) return work();
        const auto start = Clock::now();
        const auto result = work();
        nanoseconds += std::chrono::nanoseconds(Clock::now() - start).count();
        return result;
    }
};
Stage unstuffing, passing, decoding;

const baseline::BaselineKernel* inner = nullptr;

bool decode_mcus(baseline::ScanState& scan, int column, int count) {
    return decoding.run([&] { return inner->decode_mcus(scan, column, count); });
}

bool skip_mcus(baseline::ScanState& scan, int count) {
    return passing.run([&] { return inner->skip_mcus(scan, count); });
}

constexpr baseline::BaselineKernel timed_kernel = {decode_mcus, skip_mcus};

std::vector<std::uint8_t> read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        std::fprintf(stderr, "decode_stages: cannot read %s\n", path);
        std::exit(EXIT_FAILURE);
    }
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Crops {
  public:
    explicit Crops(std::vector<std::vector<std::uint8_t>> files) : files_(std::move(files)) {
        image_.resize(spec_.image_bytes());
    }

    /// Nanoseconds of a crop of each file, all by `kernel`.
    std::int64_t run(std::uint32_t pass, const SeekIndex* index, const baseline::BaselineKernel& kernel) {
        inner = &kernel;
        const auto start = Clock::now();
        for (std::size_t i = 0; i < files_.size(); ++i) {
            decoder_.decode_crop(files_[i], spec_, {1, pass, i}, image_.data(), index);
            if (decoder_.last_seek() != (index != nullptr ? SeekUse::used : SeekUse::without)) {
                std::fprintf(stderr, "decode_stages: image %zu was not decoded as it was to be\n", i);
                std::exit(EXIT_FAILURE);
            }
        }
        return std::chrono::nanoseconds(Clock::now() - start).count();
    }

  private:
    DecodeSpec spec_;
    std::vector<std::vector<std::uint8_t>> files_;
    std::vector<std::uint8_t> image_;
    ImageDecoder decoder_;
};

std::int64_t time_of(Stage& stage, Crops& crops, std::uint32_t pass, const SeekIndex* index,
                     const baseline::BaselineKernel& kernel) {
    stage = {true, 0};
    crops.run(pass, index, kernel);
    stage.timed = false;
    return stage.nanoseconds;
}

void report(Crops& crops, std::uint32_t pass, const SeekIndex* index) {
    const baseline::BaselineKernel& whole = kernels_here().back()->baseline;
    const std::int64_t total = crops.run(pass, index, whole);
    const std::int64_t copied = time_of(unstuffing, crops, pass, index, whole);
    const std::int64_t passed = time_of(passing, crops, pass, index, whole);
    const std::int64_t coded = time_of(decoding, crops, pass, index, baseline::entropy_kernel);
    const std::int64_t decoded = time_of(decoding, crops, pass, index, whole);
    std::printf("%s %lld %lld %lld %lld %lld\n", index != nullptr ? "index" : "whole",
                static_cast<long long>(total), static_cast<long long>(copied), static_cast<long long>(passed),
                static_cast<long long>(coded), static_cast<long long>(decoded));
    std::fflush(stdout);
}

}  // namespace

baseline::Unstuffed baseline::unstuff(std::span<const std::uint8_t> data, std::uint8_t* out) {
    return unstuffing.run([&] { return unstuff_without_clock(data, out); });
}

}  // namespace hpcai500

int main(int count, char** arguments) {
    using namespace hpcai500;
    if (count < 4) {
        std::fprintf(stderr, "usage: decode_stages PASSES INDEX FILE...\n");
        return EXIT_FAILURE;
    }
    const Kernels& whole = *kernels_here().back();
#ifdef __x86_64__
    if (&whole == &portable_kernels) {
        std::fprintf(stderr,
                     "decode_stages: this processor has no AVX2, which reading codes is compiled for here\n");
        return EXIT_FAILURE;
    }
#endif
    std::printf("built by %s, kernel %s\n", __VERSION__, whole.isa);
    const int passes = std::atoi(arguments[1]);
    const SeekIndex index(arguments[2]);
    std::vector<std::vector<std::uint8_t>> files;
    for (int i = 3; i < count; ++i) files.push_back(read(arguments[i]));
    baseline::use(timed_kernel);
    Crops crops(std::move(files));
    crops.run(0, nullptr, whole.baseline);
    for (int pass = 0; pass < passes; ++pass) {
        report(crops, static_cast<std::uint32_t>(pass), nullptr);
        report(crops, static_cast<std::uint32_t>(pass), &index);
    }
    return EXIT_SUCCESS;
}
