// The group of processes for the rest of refold, see train/launch.h.
#include "core/group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "train/launch.h"
#include "train/torch/processes.h"

namespace refold {
namespace {

class ProcessGroup : public Group {
public:
    int rank() const override { return processes_.rank(); }
    int size() const override { return processes_.size(); }

    std::vector<std::string> gather(const std::string& own) override {
        at::Tensor sizes = at::zeros({size()}, at::kLong);
        sizes[rank()] = static_cast<int64_t>(own.size());
        processes_.sum(sizes);
        // gloo needs rows of one length, which must not be 0.
        at::Tensor rows = at::empty({size(), sizes.max().item<int64_t>() + 1}, at::kByte);
        std::memcpy(rows[rank()].data_ptr<uint8_t>(), own.data(), own.size());
        processes_.gather(rows);
        std::vector<std::string> all;
        for (int r = 0; r < size(); ++r) {
            all.emplace_back(reinterpret_cast<const char*>(rows[r].data_ptr<uint8_t>()),
                             static_cast<size_t>(sizes[r].item<int64_t>()));
        }
        return all;
    }

    void sum(std::span<double> values) override {
        at::Tensor all = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
        processes_.sum(all);
    }

private:
    Processes processes_;
};

}  // namespace
}  // namespace refold

extern "C" {
[[gnu::visibility("default")]] refold::GroupFunction refold_torch_group;
}

refold::Group* refold_torch_group() { return new refold::ProcessGroup(); }
