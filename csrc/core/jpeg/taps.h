// Which source pixels make an output pixel, and with what weight: antialiased bilinear, as Pillow defines it.
#pragma once

#include <cstddef>

#include "core/grow_buffer.h"

namespace hpcai500 {

/// One axis of a resize. Output i is the sum over k in [0, count(i)) of weights(i)[k] * source[start(i) + k].
class Taps {
  public:
    /// Takes `outputs` pixels from the interval [begin, end) of a line of `limit` source pixels. The triangle
    /// filter is as wide as the scale (never narrower than one pixel), may reach outside the interval, and is
    /// cut at 0 and `limit`. Needs 0 <= begin < end <= limit and outputs >= 1.
    void prepare(double begin, double end, int limit, int outputs);

    /// The taps, on a line of half as many samples, that do what `full` does on that line upsampled by
    /// libjpeg's triangle filter: each pixel is 3/4 of the sample that it lies in and 1/4 of the next one on
    /// its side, edges repeat. Place 0 of `full` is pixel `origin`; place 0 here is the line's first sample,
    /// and it has `limit` samples.
    void prepare_halved(const Taps& full, int origin, int limit);

    int start(int output) const { return starts_.data()[output]; }
    int count(int output) const { return counts_.data()[output]; }
    const float* weights(int output) const {
        return weights_.data() + static_cast<std::size_t>(output) * static_cast<std::size_t>(stride_);
    }

    /// The source pixels that are used at all are [first, last).
    int first() const { return start(0); }
    int last() const { return start(outputs_ - 1) + count(outputs_ - 1); }
    int outputs() const { return outputs_; }
    int stride() const { return stride_; }  ///< weights of output i start at weights(0) + i * stride()

    /// The largest count of outputs [begin, end).
    int most(int begin, int end) const;

    /// The most source pixels that `group` neighbouring outputs span together.
    int widest_span(int group) const;

  private:
    GrowBuffer<int> starts_, counts_;
    GrowBuffer<float> weights_;
    int stride_ = 0;
    int outputs_ = 0;
};

}  // namespace hpcai500
