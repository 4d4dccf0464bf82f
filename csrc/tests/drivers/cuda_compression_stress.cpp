// Buckets on the device against their CPU twins: values to the bit, norms to 1e-12. Sizes round every
// border, addresses of every alignment, numbers of every kind, and as many tensors as fit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/gradients/cast.h"
#include "core/gradients/compression_cuda.h"
#include "core/gradients/layer_norms.h"
#include "core/gradients/quantise.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"
#include "made_inputs.h"

namespace hpcai500::drivers {
namespace {

using Floats = std::vector<float>;

// Magnitudes that a device's float32 squares, that it does not, and any bits.
float some_value(Random& random, int kind) {
    const float usual = static_cast<float>(below(random, 20001)) * 1e-4f - 1.0f;
    switch (kind) {
        case 0:
            return any_float(random);
        case 1:
            return 0.0f;
        case 2:
            return usual * 1e-25f;
        case 3:
            return usual * 1e30f;
        case 4:
            return usual * 1e-42f;
        case 5:
            // One among many far smaller ones.
            return below(random, 30) == 0 ? usual : usual * 1e-4f;
        default:
            return usual;
    }
}

std::size_t some_size(Random& random) {
    switch (below(random, 6)) {
        case 0:
            return 0;
        case 1:
            return 4090 + below(random, 12);
        case 2:
            return 4096 * (1 + below(random, 3));
        case 3:
            return below(random, 12000);
        default:
            return 1 + below(random, 600);
    }
}

// At any address of a float.
Guarded<float> there(Random& random, const Floats& values) {
    return Guarded<float>(below(random, 5), values);
}

bool same(float mine, float theirs) {
    if (std::isnan(mine) || std::isnan(theirs)) return std::isnan(mine) && std::isnan(theirs);
    return std::bit_cast<std::uint32_t>(mine) == std::bit_cast<std::uint32_t>(theirs);
}

bool close(double mine, double theirs) {
    if (std::isnan(mine) || std::isnan(theirs)) return std::isnan(mine) && std::isnan(theirs);
    return mine == theirs || std::abs(mine - theirs) <= 1e-12 * theirs;
}

// The same tensors on both sides, and all calls on them.
class Round {
  public:
    Round(Random& random, const std::vector<std::size_t>& sizes) : random_(random), norms_(sizes.size()) {
        for (const std::size_t size : sizes) {
            Floats tensor(size);
            const int kind = below(random_, 12);
            for (float& value : tensor) value = some_value(random_, kind);
            tensors_.push_back(std::move(tensor));
            there_.push_back(there(random_, tensors_.back()));
            count_ += size;
        }
        for (Floats& tensor : tensors_) {
            sources_.emplace_back(tensor);
            targets_.emplace_back(tensor);
        }
        for (const auto& tensor : there_) {
            sources_there_.emplace_back(tensor.data(), tensor.size());
            targets_there_.emplace_back(tensor.data(), tensor.size());
        }
    }

    void norms() {
        const Call call(*this);
        layer_norms(sources_, norms_.data(), 1);
        layer_norms_cuda(sources_there_, call.norms.data(), call.place());
        compare_norms("layer_norms", call);
        const std::vector<double> once = call.norms.read();
        layer_norms_cuda(sources_there_, call.norms.data(), call.place());
        const std::vector<double> twice = call.norms.read();
        const auto bits = [](double norm) { return std::bit_cast<std::uint64_t>(norm); };
        if (!std::ranges::equal(once, twice, {}, bits, bits))
            throw std::runtime_error("compression: layer_norms differ between two calls");
    }

    // There and back.
    void cast(Wire wire) {
        const Call call(*this);
        const std::size_t item = item_size(wire);
        double* const norms = below(random_, 3) == 0 ? nullptr : norms_.data();
        double* const norms_there = norms == nullptr ? nullptr : call.norms.data();
        const std::string name = "wire " + std::to_string(static_cast<int>(wire));
        Bytes packed(count_ * item);
        const Guarded<std::uint8_t> packed_there(below(random_, 5) * item, packed.size());
        pack(sources_, packed.data(), wire, 0.3f, norms, 1);
        pack_cuda(sources_there_, packed_there.data(), wire, 0.3f, norms_there, call.place());
        compare_items("pack to " + name, wire, packed_there.read(), packed);
        if (norms != nullptr) compare_norms("pack to " + name, call);
        unpack(packed.data(), targets_, wire, 3.0f, norms, 1);
        unpack_cuda(packed_there.data(), targets_there_, wire, 3.0f, norms_there, call.place());
        compare_tensors("unpack from " + name);
        if (norms != nullptr) compare_norms("unpack from " + name, call);
    }

    void quantised(bool with_residual) {
        const Call call(*this);
        coded_.resize(static_cast<std::size_t>(quantised_bytes(static_cast<std::int64_t>(count_))));
        there_coded_.emplace(4 * below(random_, 4), coded_.size());
        double* const norms = below(random_, 3) == 0 ? nullptr : norms_.data();
        Floats residual(count_, 1e-3f);
        const Guarded<float> residual_there = there(random_, residual);
        quantise(sources_, coded_.data(), with_residual ? residual.data() : nullptr, 0.7f, norms, 1);
        quantise_cuda(sources_there_, there_coded_->data(), with_residual ? residual_there.data() : nullptr,
                      0.7f, norms == nullptr ? nullptr : call.norms.data(), call.place());
        const Bytes mine = there_coded_->read();
        for (std::size_t at = 0; at < coded_.size(); ++at)
            if (mine[at] != coded_[at]) fail("quantise: byte", at, mine[at], coded_[at]);
        const Floats rest = residual_there.read();
        for (std::size_t at = 0; at < count_; ++at)
            if (!same(rest[at], residual[at])) fail("residual", at, rest[at], residual[at]);
        if (norms != nullptr) compare_norms("quantise", call);
    }

    // What quantised() has made.
    void dequantised(bool accumulate) {
        const Call call(*this);
        double* const norms = below(random_, 3) == 0 ? nullptr : norms_.data();
        dequantise(coded_.data(), targets_, 1.1f, accumulate, norms, 1);
        dequantise_cuda(there_coded_->data(), targets_there_, 1.1f, accumulate,
                        norms == nullptr ? nullptr : call.norms.data(), call.place());
        compare_tensors("dequantise");
        if (norms != nullptr) compare_norms("dequantise", call);
    }

  private:
    // Of a call: what it needs beside its tensors, all of the device.
    struct Call {
        explicit Call(const Round& round)
            : workspace(compression_cuda_workspace(static_cast<std::int64_t>(round.tensors_.size()),
                                                   static_cast<std::int64_t>(round.count_))),
              norms(round.tensors_.size()) {}
        CudaPlace place() const { return {workspace.data(), 0, nullptr}; }

        DeviceBuffer<std::uint8_t> workspace;
        DeviceBuffer<double> norms;
    };

    [[noreturn]] void fail(const std::string& what, std::size_t at, double mine, double theirs) const {
        std::ostringstream message;
        message.precision(17);
        message << "compression: " << what << ' ' << at << " is " << mine << " on the device, " << theirs
                << " on the CPU; tensors (address, size):";
        for (std::size_t i = 0; i < std::min<std::size_t>(sources_there_.size(), 40); ++i)
            message << " (" << reinterpret_cast<std::uintptr_t>(sources_there_[i].data()) % 16 << ", "
                    << sources_there_[i].size() << ')';
        throw std::runtime_error(message.str());
    }

    void compare_norms(const std::string& what, const Call& call) const {
        const std::vector<double> mine = call.norms.read();
        for (std::size_t i = 0; i < mine.size(); ++i)
            if (!close(mine[i], norms_[i])) fail(what + ": norm", i, mine[i], norms_[i]);
    }
    void compare_tensors(const std::string& what) const {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            const Floats mine = there_[i].read();
            for (std::size_t at = 0; at < mine.size(); ++at)
                if (!same(mine[at], tensors_[i][at]))
                    fail(what + ": tensor " + std::to_string(i) + ", value", at, mine[at], tensors_[i][at]);
        }
    }

    void compare_items(const std::string& what, Wire wire, const Bytes& mine, const Bytes& theirs) const {
        const std::size_t item = item_size(wire);
        for (std::size_t at = 0; at < theirs.size(); at += item) {
            const float a = value_of(wire, mine.data() + at);
            const float b = value_of(wire, theirs.data() + at);
            if (!same(a, b)) fail(what + ": value", at / item, a, b);
        }
    }

    // One to one, if not the number that the bits stand for; NaN are NaN.
    static float value_of(Wire wire, const std::uint8_t* bytes) {
        if (wire == Wire::float32) return std::bit_cast<float>(bits_at(bytes, 4, infinite_float));
        const auto bits = bits_at(bytes, 2, wire == Wire::float16 ? infinite_half : infinite_bfloat);
        return bits == ~0u ? std::nanf("") : static_cast<float>(bits);
    }

    Random& random_;
    std::vector<Floats> tensors_;
    std::vector<Guarded<float>> there_;
    std::vector<std::span<const float>> sources_, sources_there_;
    std::vector<std::span<float>> targets_, targets_there_;
    std::vector<double> norms_;
    std::size_t count_ = 0;
    Bytes coded_;
    std::optional<Guarded<std::uint8_t>> there_coded_;
};

std::vector<std::size_t> some_sizes(Random& random) {
    std::vector<std::size_t> sizes(below(random, 6));
    for (std::size_t& size : sizes) size = some_size(random);
    return sizes;
}

// Many share a chunk.
std::vector<std::size_t> crowded_sizes(Random& random) {
    const auto most = static_cast<std::size_t>(compression_cuda_most_tensors());
    std::vector<std::size_t> sizes(below(random, 4) == 0 ? most : 1 + below(random, std::size_t{260}));
    for (std::size_t& size : sizes) size = below(random, below(random, 20) == 0 ? 600 : 7);
    return sizes;
}

// As many tensors as a table has, or more; most are empty: a block of threads takes the stand-in ten
// milliseconds.
std::vector<std::size_t> sparse_sizes(Random& random, std::size_t more = 0) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(compression_cuda_most_tensors()) + more);
    for (int i = 0; i < 5; ++i) sizes[below(random, sizes.size())] = some_size(random);
    return sizes;
}

// More tensors than a table has: a bucket is refused, norms are not.
void above_the_table(Random& random) {
    Round(random, sparse_sizes(random, 1 + below(random, std::size_t{2000}))).norms();
    Round bucket(random, sparse_sizes(random, 1));
    try {
        bucket.cast(Wire::float16);
    } catch (const std::invalid_argument&) {
        return;
    }
    throw std::runtime_error("compression: more tensors than a table has were not refused");
}

}  // namespace

void stress_compression(int rounds) {
    Random random(31);
    for (int round = 0; round < rounds; ++round) {
        const Wire wire = static_cast<Wire>(round % 3);
        Round usual(random, some_sizes(random));
        usual.norms();
        usual.cast(wire);
        usual.quantised(round % 2 == 0);
        usual.dequantised(round % 4 < 2);
        Round(random, crowded_sizes(random)).quantised(round % 2 == 0);
        if (round % 4 == 0) Round(random, sparse_sizes(random)).cast(wire);
        if (round % 4 == 1) above_the_table(random);
    }
}

}  // namespace hpcai500::drivers
