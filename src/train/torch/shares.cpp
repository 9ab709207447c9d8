#include "train/torch/shares.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"

namespace refold {
namespace {

constexpr int64_t kPiece = 1 << 22;  // elements

}  // namespace

Shares::Shares(Leaves leaves, Processes& processes) : leaves_(std::move(leaves)), processes_(processes) {
    for (const auto& [name, leaf] : leaves_) {
        begins_.push_back(numbers_);
        numbers_ += leaf.numel();
    }
    size_ = (numbers_ + processes.size() - 1) / processes.size();
}

std::vector<LeafSlice> Shares::slices(int64_t first, int64_t count) const {
    std::vector<LeafSlice> out;
    size_t i = 0;
    for (const auto& [name, leaf] : leaves_) {
        const int64_t begin = begins_[i++];
        const int64_t from = std::max(first, begin), to = std::min(first + count, begin + leaf.numel());
        if (from < to) out.push_back({leaf, from - begin, to - from, from - first});
    }
    return out;
}

int64_t Shares::begin_of(const std::string& name) const {
    const auto found = leaves_.find(name);
    if (found == leaves_.end()) fail(ErrorCode::internal, "train", "'{}' is not trained", name);
    return begins_[static_cast<size_t>(std::distance(leaves_.begin(), found))];
}

void Shares::for_pieces(const std::string& name,
                        const std::function<void(int64_t first, int64_t count)>& body) const {
    const int64_t begin = begin_of(name), end = begin + leaves_.at(name).numel();
    for (int64_t at = begin; at < end; at += kPiece) body(at, std::min(kPiece, end - at));
}

at::Tensor Shares::gathered(const at::Tensor& own, int64_t begin, int64_t count) const {
    const at::Tensor out = at::empty({count}, at::kFloat);
    for (int rank = 0; rank < processes_.size(); ++rank) {
        const int64_t from = std::max(begin, first(rank)),
                      to = std::min(begin + count, first(rank) + this->count(rank));
        if (from >= to) continue;
        at::Tensor part = out.narrow(0, from - begin, to - from);
        if (rank == processes_.rank()) part.copy_(own.narrow(0, from - first(rank), to - from));
        processes_.broadcast(part, rank);
    }
    return out;
}

void Shares::take(at::Tensor own, int64_t begin, const at::Tensor& values) const {
    const int64_t from = std::max(begin, own_first()),
                  to = std::min(begin + values.numel(), own_first() + own_count());
    if (from < to)
        own.narrow(0, from - own_first(), to - from).copy_(values.narrow(0, from - begin, to - from));
}

}  // namespace refold
