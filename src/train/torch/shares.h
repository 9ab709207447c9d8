// How the trained numbers are divided over the processes: the elements of all leaves, concatenated by name,
// in equal shares, one per process by rank. The optimizer's state is divided so (ZeRO stage 1, Rajbhandari et
// al. 2020), and with stage 2 the gradients as well.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/torch/processes.h"

namespace refold {

using Leaves = std::map<std::string, at::Tensor>;

// Elements [first, first + count) of a leaf; `at`: where they begin among the elements that were asked for.
struct LeafSlice {
    at::Tensor leaf;
    int64_t first, count, at;

    at::Tensor of(const at::Tensor& like_the_leaf) const {
        return like_the_leaf.detach().reshape(-1).narrow(0, first, count);
    }
    at::Tensor values() const { return of(leaf); }
};

class Shares {
public:
    Shares(Leaves leaves, Processes& processes);

    const Leaves& leaves() const { return leaves_; }
    // Elements of all leaves, and of the largest share.
    int64_t numbers() const { return numbers_; }
    int64_t size() const { return size_; }
    // A process's share: [first(rank), first(rank) + count(rank)).
    int64_t first(int rank) const { return std::min(numbers_, rank * size_); }
    int64_t count(int rank) const { return std::min(size_, numbers_ - first(rank)); }
    int64_t own_first() const { return first(processes_.rank()); }
    int64_t own_count() const { return count(processes_.rank()); }

    // Elements [first, first + count) of all leaves, leaf by leaf.
    std::vector<LeafSlice> slices(int64_t first, int64_t count) const;
    // Where a leaf's elements begin among those of all.
    int64_t begin_of(const std::string& name) const;

    // Calls `body` for pieces [first, first + count) of a leaf that are small enough to be exchanged at once.
    void for_pieces(const std::string& name,
                    const std::function<void(int64_t first, int64_t count)>& body) const;
    // Elements [first, first + count) as float32 in the CPU's memory, of which every process gives those of
    // its share: `own` [own_count()]. Collective.
    at::Tensor gathered(const at::Tensor& own, int64_t first, int64_t count) const;
    // The reverse: takes from `values`, elements [first, first + values.numel()), what belongs to `own`.
    void take(at::Tensor own, int64_t first, const at::Tensor& values) const;

private:
    Leaves leaves_;
    Processes& processes_;
    std::vector<int64_t> begins_;  // by the leaves' order
    int64_t numbers_ = 0, size_ = 0;
};

}  // namespace refold
