// Buckets of seeded sizes and any bits, there and back in every form:
//   compression_stress ROUNDS THREADS
// Every array is exactly as large as it must be, so that a sanitizer sees an element touched behind it. Ends
// by a sanitizer, or with failure where a result depends on the number of threads. Prints the number of
// rounds.
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/gradients/cast.h"
#include "core/gradients/layer_norms.h"
#include "core/gradients/memory_streams.h"
#include "core/gradients/quantise.h"
#include "made_inputs.h"
#include "stress.h"

namespace hpcai500::drivers {
namespace {

// Mostly gradients, sometimes any bits.
float some_value(Random& random, bool wild) {
    if (wild) return any_float(random);
    return static_cast<float>(below(random, 20001) - 10000) * 1e-4f;
}

int some_size(Random& random) {
    switch (below(random, 8)) {
        case 0:
            return 0;
        case 1:
            return 300'000 + below(random, 1000);
        case 2:
            return 256 * below(random, 40);
        default:
            return below(random, 1200);
    }
}

// Tensors of a bucket, each in memory of its own.
class Tensors {
  public:
    explicit Tensors(Random& random) : values_(static_cast<std::size_t>(below(random, 12))) {
        for (std::vector<float>& tensor : values_) {
            tensor.resize(static_cast<std::size_t>(some_size(random)));
            const bool wild = below(random, 4) == 0;
            for (float& value : tensor) value = some_value(random, wild);
            count_ += tensor.size();
        }
        for (std::vector<float>& tensor : values_) {
            sources_.emplace_back(tensor);
            targets_.emplace_back(tensor);
        }
    }
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    SourceTensors sources() const { return sources_; }
    TargetTensors targets() const { return targets_; }
    std::size_t count() const { return count_; }
    std::size_t size() const { return values_.size(); }

    Bytes bits() const {
        Bytes result;
        for (const std::vector<float>& tensor : values_) {
            const auto* const bytes = reinterpret_cast<const std::uint8_t*>(tensor.data());
            result.insert(result.end(), bytes, bytes + tensor.size() * sizeof(float));
        }
        return result;
    }

  private:
    std::vector<std::vector<float>> values_;
    std::vector<std::span<const float>> sources_;
    std::vector<std::span<float>> targets_;
    std::size_t count_ = 0;
};

// All that one seed makes, with this many threads. Sizes, values and options depend on the seed only.
class Round {
  public:
    Round(std::uint64_t seed, int threads) : random_(seed), tensors_(random_), threads_(threads) {}

    Bytes run() {
        scale_ = below(random_, 3) == 0 ? some_value(random_, false) * 1e30f : 0.5f;
        norms_.resize(tensors_.size());
        double* const norms = below(random_, 2) == 0 ? norms_.data() : nullptr;
        cast(norms);
        quantise_twice(norms);
        layer_norms(tensors_.sources(), norms_.data(), threads_);
        keep(norms_.data(), norms_.size() * sizeof(double));
        const Bytes bits = tensors_.bits();
        result_.insert(result_.end(), bits.begin(), bits.end());
        return result_;
    }

  private:
    void keep(const void* data, std::size_t bytes) {
        const auto* const from = static_cast<const std::uint8_t*>(data);
        result_.insert(result_.end(), from, from + bytes);
    }

    void cast(double* norms) {
        for (const Wire wire : {Wire::float32, Wire::float16, Wire::bfloat16}) {
            Bytes buffer(tensors_.count() * item_size(wire));
            pack(tensors_.sources(), buffer.data(), wire, scale_, norms, threads_);
            keep(buffer.data(), buffer.size());
            unpack(buffer.data(), tensors_.targets(), wire, 2.0f, norms, threads_);
        }
    }

    void quantise_twice(double* norms) {
        Bytes buffer(static_cast<std::size_t>(quantised_bytes(static_cast<std::int64_t>(tensors_.count()))));
        std::vector<float> rests(tensors_.count(), 1e-3f);
        float* const residual = below(random_, 3) == 0 ? nullptr : rests.data();
        for (const bool accumulate : {false, true}) {
            quantise(tensors_.sources(), buffer.data(), residual, scale_, norms, threads_);
            keep(buffer.data(), buffer.size());
            dequantise(buffer.data(), tensors_.targets(), 0.7f, accumulate, norms, threads_);
        }
        keep(rests.data(), rests.size() * sizeof(float));
        for (std::uint8_t& byte : buffer) byte = static_cast<std::uint8_t>(random_());
        dequantise(buffer.data(), tensors_.targets(), 0.7f, false, norms, threads_);
    }

    Random random_;
    Tensors tensors_;
    int threads_;
    float scale_ = 1;
    std::vector<double> norms_;
    Bytes result_;
};

Bytes without_nan(Bytes bytes) {
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4)
        if (bits_at(bytes.data() + at, 4, infinite_float) == ~0u) std::memset(bytes.data() + at, 0, 4);
    return bytes;
}

void stress_streams(int threads) {
    struct alignas(64) Line {
        std::uint8_t bytes[64];
    };
    std::vector<Line> from(40'000), to(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) from[i].bytes[3] = static_cast<std::uint8_t>(i % 99);
    stream_copy(from.data(), to.data(), from.size() * sizeof(Line), threads);
    if (std::memcmp(from.data(), to.data(), from.size() * sizeof(Line)) != 0)
        throw std::runtime_error("stream_copy lost something");
    if (stream_read(to.data(), to.size() * sizeof(Line), threads) != 98u << 24)
        throw std::runtime_error("stream_read has not seen all");
}

}  // namespace

std::string stress_buckets(const Words& words) {
    const int rounds = std::stoi(words[0]), threads = std::stoi(words[1]);
    for (int round = 0; round < rounds; ++round) {
        const auto seed = static_cast<std::uint64_t>(round);
        const Bytes one = Round(seed, 1).run();
        // Two callers at once: one of them has the threads, the other works alone.
        Bytes many, beside;
        std::thread caller([&] { beside = Round(seed, threads).run(); });
        many = Round(seed, threads).run();
        caller.join();
        if (without_nan(one) != without_nan(many) || without_nan(one) != without_nan(beside))
            throw std::runtime_error("a bucket depends on the number of threads");
        stress_streams(threads);
    }
    if (rounds < 1) throw std::runtime_error("nothing was done");
    return std::to_string(rounds) + " rounds";
}

}  // namespace hpcai500::drivers
