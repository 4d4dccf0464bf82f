#include "bucket.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads.h"
#include "core/vectors/kernels.h"

namespace hpcai500 {

Bucket::Bucket(SourceTensors tensors) {
    cut(tensors);
}

Bucket::Bucket(TargetTensors tensors) {
    cut(tensors);
}

template <class Tensors>
void Bucket::cut(Tensors tensors) {
    tensors_ = tensors.size();
    for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
        const auto values = static_cast<std::int64_t>(tensors[tensor].size());
        for (std::int64_t begin = 0; begin < values;) {
            const std::int64_t in_task = count_ % bucket_task;
            if (in_task == 0) task_begin_.push_back(pieces_.size());
            const std::int64_t count = std::min(values - begin, bucket_task - in_task);
            pieces_.push_back({tensor, begin, count_, count});
            begin += count;
            count_ += count;
        }
    }
    task_begin_.push_back(pieces_.size());
}

std::span<const BucketPiece> Bucket::pieces(std::int64_t task) const {
    const auto index = static_cast<std::size_t>(task);
    return std::span(pieces_).subspan(task_begin_[index], task_begin_[index + 1] - task_begin_[index]);
}

void Bucket::run(const Work& work, double* norms, int threads) const {
    std::vector<double> squares(pieces_.size());
    parallel_for(tasks(), threads, [&](std::int64_t task) {
        work(pieces(task), squares.data() + task_begin_[static_cast<std::size_t>(task)]);
        kernels().compression.publish();
    });
    if (norms == nullptr) return;
    std::fill(norms, norms + tensors_, 0.0);
    for (std::size_t i = 0; i < pieces_.size(); ++i) norms[pieces_[i].tensor] += squares[i];
    for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
        // Which NaN comes out of a sum of several is the processor's choice.
        const double sum = norms[tensor];
        norms[tensor] = std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(sum);
    }
}

}  // namespace hpcai500
