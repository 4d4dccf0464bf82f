#include "nms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "core/grow_buffer.h"
#include "core/threads.h"
#include "core/vectors/kernels.h"

namespace hpcai500 {
namespace {

// Comparisons of a keeper and a box that are worth waking another thread for.
constexpr std::int64_t pairs_for_threads = 1 << 18;

struct Ranked {
    std::uint64_t key;
    std::int64_t index;
    bool operator<(const Ranked& other) const {
        return key != other.key ? key < other.key : index < other.index;
    }
};

// Whole numbers in the order of the scores, the highest score lowest.
std::uint64_t falling_key(double score) {
    if (std::isnan(score)) return 0;
    if (score == 0) score = 0;  // -0 is no lower than 0
    std::uint64_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    constexpr std::uint64_t sign = std::uint64_t{1} << 63;
    const std::uint64_t rising = (bits & sign) != 0 ? ~bits : bits | sign;
    return ~rising;
}

template <class Real>
std::vector<std::int64_t> falling_order(const NmsInput<Real>& input) {
    std::vector<Ranked> ranked(static_cast<std::size_t>(input.count));
    for (std::int64_t i = 0; i < input.count; ++i)
        ranked[static_cast<std::size_t>(i)] = {falling_key(static_cast<double>(input.scores[i])), i};
    std::sort(ranked.begin(), ranked.end());
    std::vector<std::int64_t> order(ranked.size());
    std::transform(ranked.begin(), ranked.end(), order.begin(), [](const Ranked& box) { return box.index; });
    return order;
}

template <class Real>
using MarkOf = std::conditional_t<std::is_same_v<Real, float>, std::int32_t, std::int64_t>;

template <class Real>
Suppress<Real, MarkOf<Real>> suppress_of(const DetectionKernel& kernel) {
    if constexpr (std::is_same_v<Real, float>)
        return kernel.suppress_float;
    else
        return kernel.suppress_double;
}

constexpr int padded(int count) {
    return (count + box_block - 1) / box_block * box_block;
}

// The boxes of one group, sorted, and which of them are gone.
template <class Real>
class SortedBoxes {
  public:
    SortedBoxes(const Real* boxes, const std::int64_t* order, int count) : count_(count) {
        const int length = padded(count);
        const auto stride = static_cast<std::size_t>(length);
        Real* columns = columns_.reserve(5 * stride);
        std::fill(columns, columns + 5 * stride, std::numeric_limits<Real>::quiet_NaN());
        for (int i = 0; i < count; ++i) {
            const Real* box = boxes + 4 * order[i];
            for (std::size_t side = 0; side < 4; ++side)
                columns[side * stride + static_cast<std::size_t>(i)] = box[side];
            columns[4 * stride + static_cast<std::size_t>(i)] = (box[2] - box[0]) * (box[3] - box[1]);
        }
        view_ = {columns, columns + stride, columns + 2 * stride, columns + 3 * stride, columns + 4 * stride};
        marks_.reserve(stride);
        std::fill(marks_.data(), marks_.data() + length, 0);
    }

    // Calls keep(i) for each box that stays, in order.
    template <class Keep>
    void run(Real threshold, int threads, const Keep& keep) {
        const auto suppress = suppress_of<Real>(kernels().detection);
        for (int block = 0; block < count_; block += box_block) {
            int keepers[box_block], kept = 0;
            const int end = std::min(block + box_block, count_);
            for (int i = block; i < end; ++i) {
                if (marks_.data()[i] != 0) continue;
                keep(i);
                keepers[kept++] = i;
                suppress(view_, &i, 1, block, block + box_block, threshold, marks_.data());
            }
            suppress_rest(keepers, kept, block + box_block, threshold, threads);
        }
    }

  private:
    void suppress_rest(const int* keepers, int kept, int begin, Real threshold, int threads) {
        const auto suppress = suppress_of<Real>(kernels().detection);
        const int end = padded(count_);
        const std::int64_t pairs = static_cast<std::int64_t>(end - begin) * kept;
        const int parts =
            static_cast<int>(std::clamp<std::int64_t>(pairs / pairs_for_threads, 1, std::max(threads, 1)));
        const int part = padded((end - begin + parts - 1) / parts);
        parallel_for(parts, threads, [&](std::int64_t index) {
            const std::int64_t from = begin + index * part;
            if (from >= end) return;
            const int to = static_cast<int>(std::min<std::int64_t>(from + part, end));
            suppress(view_, keepers, kept, static_cast<int>(from), to, threshold, marks_.data());
        });
    }

    int count_;
    BoxColumns<Real> view_{};
    GrowBuffer<Real> columns_;
    GrowBuffer<MarkOf<Real>> marks_;
};

// Where each group begins in `order` once it is sorted by group; the last entry is the end.
std::vector<std::size_t> group_starts(const std::int64_t* groups, const std::vector<std::int64_t>& order) {
    std::vector<std::size_t> starts{0};
    for (std::size_t i = 1; groups != nullptr && i < order.size(); ++i)
        if (groups[order[i]] != groups[order[i - 1]]) starts.push_back(i);
    starts.push_back(order.size());
    return starts;
}

}  // namespace

void validate_nms(std::int64_t count, double threshold) {
    if (!(threshold >= 0 && threshold <= 1))
        throw std::invalid_argument("iou_threshold must be in [0, 1], got " + std::to_string(threshold));
    if (count > most_boxes)
        throw std::invalid_argument("at most " + std::to_string(most_boxes) + " boxes at a time, got " +
                                    std::to_string(count));
}

template <class Real>
Real threshold_in(double threshold) {
    const auto nearest = static_cast<Real>(threshold);
    return static_cast<double>(nearest) > threshold ? std::nextafter(nearest, static_cast<Real>(-1))
                                                    : nearest;
}

template <class Real>
std::vector<std::int64_t> nms(const NmsInput<Real>& input, double threshold, int threads) {
    validate_nms(input.count, threshold);
    if (input.count == 0) return {};
    const std::vector<std::int64_t> order = falling_order(input);
    std::vector<std::int64_t> grouped = order;
    if (input.groups != nullptr)
        std::stable_sort(grouped.begin(), grouped.end(),
                         [&](std::int64_t a, std::int64_t b) { return input.groups[a] < input.groups[b]; });
    const std::vector<std::size_t> starts = group_starts(input.groups, grouped);
    std::vector<std::uint8_t> stays(order.size(), 0);
    const auto groups = static_cast<std::int64_t>(starts.size()) - 1;
    const bool many = input.count >= static_cast<std::int64_t>(box_block) * box_block;
    parallel_for(groups, many ? threads : 1, [&](std::int64_t group) {
        const std::size_t begin = starts[static_cast<std::size_t>(group)];
        const std::size_t end = starts[static_cast<std::size_t>(group) + 1];
        SortedBoxes<Real> boxes(input.boxes, grouped.data() + begin, static_cast<int>(end - begin));
        boxes.run(threshold_in<Real>(threshold), threads, [&](int i) {
            stays[static_cast<std::size_t>(grouped[begin + static_cast<std::size_t>(i)])] = 1;
        });
    });
    std::vector<std::int64_t> kept;
    for (const std::int64_t index : order)
        if (stays[static_cast<std::size_t>(index)] != 0) kept.push_back(index);
    return kept;
}

template float threshold_in<float>(double);
template double threshold_in<double>(double);
template std::vector<std::int64_t> nms<float>(const NmsInput<float>&, double, int);
template std::vector<std::int64_t> nms<double>(const NmsInput<double>&, double, int);

}  // namespace hpcai500
