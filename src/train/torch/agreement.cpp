#include "train/torch/agreement.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "core/error.h"
#include "train/identity.h"

namespace refold {
namespace {

std::string described(const TrainRequest& request) {
    const TrainOptions& o = request.options;
    return request.identity +
           fmt::format(
               "steps of the run: {}\nsequences of a step: {}\nof a forward pass: {}\n"
               "tokens of a sequence: {}\nsequences of the text: {}\nheld-out sequences: {}\n"
               "seed of the order: {}\ntrained: {}\nzero: {}\nweights: {}\nproducts: {}\n",
               o.steps, o.batch, o.micro_batch, o.context, request.data.size(), request.data.held_out_size(),
               o.seed, o.train, o.zero, o.weights == TrainType::bf16 ? "bf16" : "f32",
               o.products() == TrainType::bf16 ? "bf16" : "f32");
}

// The first process's text.
std::string first_of(const std::string& own, Processes& processes) {
    at::Tensor size = at::empty({1}, at::kLong);
    size.fill_(static_cast<int64_t>(own.size()));
    processes.broadcast(size, 0);
    at::Tensor bytes = at::zeros({size.item<int64_t>()}, at::kByte);
    if (processes.first()) std::memcpy(bytes.data_ptr<uint8_t>(), own.data(), own.size());
    processes.broadcast(bytes, 0);
    return {reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>()), static_cast<size_t>(bytes.numel())};
}

}  // namespace

void check_agreement(const TrainRequest& request, Processes& processes) {
    if (processes.size() == 1) return;
    const std::string own = described(request), first = first_of(own, processes);
    at::Tensor differs = at::zeros({processes.size()}, at::kLong);
    differs[processes.rank()] = own == first ? 0 : 1;
    processes.sum(differs);
    if (own != first) {
        fail(ErrorCode::usage, "train",
             "process {} of {} has not the same run as process 0: {} - start all processes with the same "
             "command and "
             "files",
             processes.rank(), processes.size(), identity_difference(first, own, "there", "here"));
    }
    std::vector<int> ranks;
    for (int rank = 0; rank < processes.size(); ++rank)
        if (differs[rank].item<int64_t>() != 0) ranks.push_back(rank);
    if (!ranks.empty()) {
        fail(ErrorCode::usage, "train",
             "process {} of {}: the processes with RANK {} have another model, text or options - start all "
             "with the same "
             "command and files",
             processes.rank(), processes.size(), fmt::join(ranks, ", "));
    }
}

}  // namespace refold
