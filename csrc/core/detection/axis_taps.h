// RoIAlign's average over bilinear samples is separable: a bin is a weighted sum of rows, of weighted sums of
// columns. Samples that share a pixel share its tap, so that a dense grid costs no more than its pixels.
#pragma once

#include <vector>

#include "detection_kernel.h"
#include "roi_geometry.h"

namespace hpcai500 {

/// The taps of one axis of one roi; reused from one roi to the next.
template <class Real>
class AxisTaps {
  public:
    void prepare(const RoiAxis<Real>& axis, int bins, int size);

    AxisTapsView<Real> view() const { return {begin_.data(), index_.data(), weight_.data()}; }

    /// All pixels that are used are in [first(), end()).
    int first() const { return first_; }
    int end() const { return end_; }

  private:
    void add(std::size_t bin_begin, int index, Real weight);

    std::vector<int> begin_, index_;
    std::vector<Real> weight_;
    int first_ = 0, end_ = 0;
};

extern template class AxisTaps<float>;
extern template class AxisTaps<double>;

}  // namespace hpcai500
