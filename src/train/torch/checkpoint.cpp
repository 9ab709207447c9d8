#include "train/torch/checkpoint.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "io/safetensors.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "weights.";
constexpr const char* kBest = "best.";

// Element types of a state, and their names in safetensors.
const std::vector<std::pair<at::ScalarType, const char*>> kTypes = {
    {at::kFloat, "F32"},     {at::kDouble, "F64"}, {at::kLong, "I64"},
    {at::kBFloat16, "BF16"}, {at::kInt, "I32"},    {at::kByte, "U8"}};

const char* name_of(at::ScalarType type) {
    for (const auto& [known, name] : kTypes)
        if (known == type) return name;
    fail(ErrorCode::internal, "train", "a checkpoint cannot hold tensors of type {}", c10::toString(type));
}

at::ScalarType type_of(const std::string& name, const std::string& path) {
    for (const auto& [type, known] : kTypes)
        if (name == known) return type;
    fail(ErrorCode::input, "train", "checkpoint '{}': got a tensor of type {}, which none has", path, name);
}

SafetensorsOutput output(const std::string& name, const at::Tensor& tensor) {
    return {name, name_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor](const auto& sink) {
                const at::Tensor values = tensor.detach().cpu().contiguous();
                sink({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()});
            }};
}

at::Tensor loaded(const SafetensorsView& view, const std::string& path) {
    const at::Tensor out = at::empty(view.shape, at::TensorOptions(type_of(view.dtype, path)));
    if (!view.data.empty()) std::memcpy(out.data_ptr(), view.data.data(), view.data.size());
    return out;
}

// Packs the state in a fixed order, for broadcasting.
std::vector<double> to_numbers(const TrainState& s) {
    return {static_cast<double>(s.step),
            static_cast<double>(s.evaluated),
            s.loss,
            s.held_out_before,
            s.held_out,
            s.best,
            static_cast<double>(s.best_step),
            static_cast<double>(s.worse),
            s.stopped_early ? 1.0 : 0.0,
            s.finished ? 1.0 : 0.0};
}

TrainState from_numbers(const std::vector<double>& n) {
    return {static_cast<int64_t>(n[0]), static_cast<int64_t>(n[1]), n[2],     n[3],    n[4], n[5],
            static_cast<int64_t>(n[6]), static_cast<int64_t>(n[7]), n[8] > 0, n[9] > 0};
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    size_t first = 0;
    while (first < text.size()) {
        const size_t end = std::min(text.find('\n', first), text.size());
        lines.push_back(text.substr(first, end - first));
        first = end + 1;
    }
    return lines;
}

// Describes every line that only one identity has or whose value differs.
std::string difference(const std::string& there, const std::string& here) {
    const auto split = [](const std::string& text) {
        std::map<std::string, std::string> out;
        for (const std::string& line : lines_of(text)) {
            const size_t colon = std::min(line.find(": "), line.size());
            out[line.substr(0, colon)] = colon == line.size() ? "" : line.substr(colon + 2);
        }
        return out;
    };
    const auto before = split(there), now = split(here);
    std::vector<std::string> out;
    for (const auto& [what, value] : now) {
        const auto found = before.find(what);
        if (found == before.end())
            out.push_back(fmt::format("{} (only now)", what));
        else if (found->second != value)
            // Long values are hashes, which mean nothing to a reader.
            out.push_back(value.size() > 40 || found->second.size() > 40
                              ? fmt::format("another {}", what)
                              : fmt::format("{} (then {}, now {})", what, found->second, value));
    }
    for (const auto& [what, value] : before)
        if (!now.contains(what)) out.push_back(fmt::format("{} (only then)", what));
    return fmt::format("{}", fmt::join(out, ", "));
}

std::string optimizer_name(int rank, const std::string& key) {
    return fmt::format("optimiser.{}.{}", rank, key);
}

}  // namespace

Checkpoint::Checkpoint(std::string folder, std::string identity, Processes& processes)
    : path_(std::move(folder) + "/checkpoint.safetensors"),
      identity_(std::move(identity)),
      processes_(processes) {}

void Checkpoint::share(std::vector<double>& numbers) {
    at::Tensor x = at::tensor(numbers, at::kDouble);
    processes_.broadcast(x, 0);
    std::memcpy(numbers.data(), x.data_ptr<double>(), numbers.size() * sizeof(double));
}

void Checkpoint::save(const TrainState& state, const Leaves& weights, const Leaves& best,
                      const Optimizer& optimizer) {
    std::vector<SafetensorsOutput> tensors;
    for (const auto& [name, leaf] : weights) tensors.push_back(output(kWeights + name, leaf));
    for (const auto& [name, leaf] : best) tensors.push_back(output(kBest + name, leaf));
    // A finished run does not need the optimizer state.
    if (!state.finished) {
        const Leaves own = optimizer.state();
        for (int rank = 0; rank < processes_.size(); ++rank) {
            for (const auto& [key, tensor] : own) {
                // The shares of ranks may differ in size.
                at::Tensor size = at::tensor({tensor.numel()}, at::kLong);
                processes_.broadcast(size, rank);
                const int64_t elements = size.data_ptr<int64_t>()[0];
                at::Tensor part = rank == processes_.rank() ? tensor.detach().contiguous().reshape({-1})
                                                            : at::empty({elements}, tensor.options());
                processes_.broadcast(part, rank);
                tensors.push_back(output(optimizer_name(rank, key), part));
            }
        }
    }
    if (processes_.first()) {
        std::error_code error;
        fs::create_directories(fs::path(path_).parent_path(), error);
        if (error)
            fail(ErrorCode::io, "train", "cannot make folder '{}': {}",
                 fs::path(path_).parent_path().string(), error.message());
        const at::Tensor numbers = at::tensor(to_numbers(state), at::kDouble);
        tensors.push_back(output("state", numbers));
        write_safetensors(path_, true, tensors,
                          {{"identity", identity_},
                           {"processes", std::to_string(processes_.size())},
                           {"step", std::to_string(state.step)}},
                          {});
    }
}

void Checkpoint::check(const std::map<std::string, std::string>& metadata) const {
    const auto value = [&](const char* key) {
        const auto found = metadata.find(key);
        return found == metadata.end() ? std::string() : found->second;
    };
    if (const std::string there = value("identity"); there != identity_) {
        fail(ErrorCode::input, "train",
             "checkpoint '{}' is of another run: {} - repeat that run to go on with it, or remove the file "
             "to begin "
             "anew",
             path_, difference(there, identity_));
    }
    if (value("processes") != std::to_string(processes_.size())) {
        fail(ErrorCode::input, "train",
             "checkpoint '{}' was saved by {} processes, got {} - start as many as then, or remove the file "
             "to begin "
             "anew",
             path_, value("processes"), processes_.size());
    }
}

bool Checkpoint::restore(TrainState& state, Leaves& weights, Leaves& best, Optimizer& optimizer) {
    std::optional<SafetensorsFile> file;
    std::vector<double> found = {0, 0};  // a checkpoint exists; it has best weights
    if (processes_.first() && fs::exists(path_)) {
        file.emplace(read_safetensors(path_));
        check(file->metadata);
        found[0] = 1;
        for (const auto& [name, view] : file->tensors)
            if (name.starts_with(kBest)) found[1] = 1;
    }
    share(found);
    if (found[0] == 0) return false;
    const auto tensor = [&](const std::string& name) {
        const auto view = file->tensors.find(name);
        if (view == file->tensors.end())
            fail(ErrorCode::input, "train", "checkpoint '{}': got no tensor '{}' - it is damaged, remove it",
                 path_, name);
        return loaded(view->second, path_);
    };
    // Broadcasts rank 0's tensor into `out`.
    const auto fill = [&](const std::string& name, at::Tensor out) {
        if (file) {
            const at::Tensor value = tensor(name);
            if (value.sizes() != out.sizes() || value.scalar_type() != out.scalar_type())
                fail(ErrorCode::input, "train",
                     "checkpoint '{}': tensor '{}' has another shape than the model's", path_, name);
            out.copy_(value);
        }
        processes_.broadcast(out, 0);
    };
    std::vector<double> numbers = to_numbers(state);
    if (file) {
        const at::Tensor values = tensor("state");
        if (values.scalar_type() != at::kDouble || values.numel() != static_cast<int64_t>(numbers.size()))
            fail(ErrorCode::input, "train", "checkpoint '{}': its state is malformed - remove it", path_);
        std::memcpy(numbers.data(), values.data_ptr<double>(), values.nbytes());
    }
    share(numbers);
    state = from_numbers(numbers);
    for (auto& [name, leaf] : weights) fill(kWeights + name, leaf.detach());
    if (found[1] > 0) {
        for (auto& [name, leaf] : weights) {
            best[name] = at::empty_like(leaf.detach());
            fill(kBest + name, best[name]);
        }
    }
    if (state.finished) return true;
    Leaves own = optimizer.state();
    for (int rank = 0; rank < processes_.size(); ++rank) {
        for (auto& [key, value] : own) {
            const std::string name = optimizer_name(rank, key);
            at::Tensor size = at::tensor({file ? tensor(name).numel() : int64_t{0}}, at::kLong);
            processes_.broadcast(size, 0);
            at::Tensor part = at::empty({size.data_ptr<int64_t>()[0]}, value.options());
            fill(name, part);
            if (rank == processes_.rank()) value = part.reshape(value.sizes());
        }
    }
    optimizer.restore(own);
    return true;
}

}  // namespace refold
