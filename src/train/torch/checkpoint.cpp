#include "train/torch/checkpoint.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include "core/error.h"
#include "train/identity.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = "weights.";
constexpr const char* kBest = "best.";
constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kFormat = "2";  // of the tensors; before there was a number, shares by process

std::span<const std::byte> bytes_of(const at::Tensor& x) {
    return {static_cast<const std::byte*>(x.data_ptr()), x.nbytes()};
}

using Sink = std::function<void(std::span<const std::byte>)>;

// A tensor of the file, which all processes produce together and the first one writes.
struct Output {
    std::string name, type;
    std::vector<int64_t> shape;
    std::function<void(const Sink&)> produce;
};

Output output(const std::string& name, const char* type, const at::Tensor& tensor) {
    return {name, type, tensor.sizes().vec(),
            [tensor](const Sink& sink) { sink(bytes_of(tensor.detach().cpu().contiguous())); }};
}

// A leaf's elements in float32, of which every process has those of its share.
Output output(const std::string& prefix, const std::string& name, const Shares& shares,
              const at::Tensor& own) {
    return {prefix + name, "F32", shares.leaves().at(name).sizes().vec(),
            [&shares, name, own](const Sink& sink) {
                shares.for_pieces(name, [&](int64_t first, int64_t count) {
                    sink(bytes_of(shares.gathered(own, first, count)));
                });
            }};
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

void Checkpoint::save(const TrainState& state, const at::Tensor& best, const Optimizer& optimizer) {
    const Shares& shares = optimizer.shares();
    std::vector<Output> outputs;
    const auto add_shared = [&](const std::string& prefix, const at::Tensor& own) {
        for (const auto& [name, leaf] : shares.leaves()) outputs.push_back(output(prefix, name, shares, own));
    };
    if (optimizer.has_masters()) {
        add_shared(kWeights, optimizer.own_weights());
    } else {
        for (const auto& [name, leaf] : shares.leaves())
            outputs.push_back(output(kWeights + name, "F32", leaf));
    }
    if (best.defined()) add_shared(kBest, best);
    // A finished run does not need the optimizer state.
    if (!state.finished) {
        for (const auto& [key, own] : optimizer.state())
            if (key != "weights") add_shared(kOptimizer + key + ".", own);
        outputs.push_back(output("optimizer.steps", "I64", at::tensor({optimizer.steps()}, at::kLong)));
    }
    outputs.push_back(output("state", "F64", at::tensor(to_numbers(state), at::kDouble)));
    if (!processes_.first()) {
        for (const Output& x : outputs) x.produce([](std::span<const std::byte>) {});
        return;
    }
    std::error_code error;
    fs::create_directories(fs::path(path_).parent_path(), error);
    if (error)
        fail(ErrorCode::io, "train", "cannot make folder '{}': {}", fs::path(path_).parent_path().string(),
             error.message());
    std::vector<SafetensorsOutput> tensors;
    for (const Output& x : outputs) tensors.push_back({x.name, x.type, x.shape, x.produce});
    write_safetensors(path_, true, tensors,
                      {{"identity", identity_}, {"format", kFormat}, {"step", std::to_string(state.step)}},
                      {});
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
             path_, identity_difference(there, identity_));
    }
    if (value("format") != kFormat) {
        fail(ErrorCode::input, "train",
             "checkpoint '{}' was saved by another version of refold: its format is '{}', expected '{}' - go "
             "on "
             "with that version, or remove the file to begin anew",
             path_, value("format"), kFormat);
    }
}

at::Tensor Checkpoint::stored(const SafetensorsFile& file, const std::string& name) const {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end())
        fail(ErrorCode::input, "train", "checkpoint '{}': got no tensor '{}' - it is damaged, remove it",
             path_, name);
    const SafetensorsView& view = found->second;
    const at::ScalarType type = view.dtype == "F32"   ? at::kFloat
                                : view.dtype == "F64" ? at::kDouble
                                : view.dtype == "I64" ? at::kLong
                                                      : at::ScalarType::Undefined;
    if (type == at::ScalarType::Undefined)
        fail(ErrorCode::input, "train", "checkpoint '{}': got tensor '{}' of type {}, which none has", path_,
             name, view.dtype);
    const at::Tensor out = at::empty(view.shape, at::TensorOptions(type));
    if (!view.data.empty()) std::memcpy(out.data_ptr(), view.data.data(), view.data.size());
    return out;
}

void Checkpoint::restore(const SafetensorsFile* file, const std::string& prefix, const Shares& shares,
                         at::Tensor own) {
    for (const auto& [name, leaf] : shares.leaves()) {
        at::Tensor whole;
        if (file != nullptr) {
            whole = stored(*file, prefix + name);
            if (whole.sizes() != leaf.sizes() || whole.scalar_type() != at::kFloat)
                fail(ErrorCode::input, "train",
                     "checkpoint '{}': tensor '{}' has another shape than the model's", path_, prefix + name);
            whole = whole.reshape({-1});
        }
        const int64_t begin = shares.begin_of(name);
        shares.for_pieces(name, [&](int64_t first, int64_t count) {
            at::Tensor piece =
                file != nullptr ? whole.narrow(0, first - begin, count) : at::empty({count}, at::kFloat);
            processes_.broadcast(piece, 0);
            shares.take(own, first, piece);
        });
    }
}

bool Checkpoint::restore(TrainState& state, at::Tensor& best, Optimizer& optimizer) {
    const c10::NoGradGuard no_gradients;
    std::optional<SafetensorsFile> opened;
    std::vector<double> found = {0, 0, 0};  // a checkpoint exists; it has best weights; the optimizer's steps
    if (processes_.first() && fs::exists(path_)) {
        opened.emplace(read_safetensors(path_));
        check(opened->metadata);
        found[0] = 1;
        for (const auto& [name, view] : opened->tensors)
            if (name.starts_with(kBest)) found[1] = 1;
        if (opened->tensors.contains("optimizer.steps"))
            found[2] = static_cast<double>(stored(*opened, "optimizer.steps").item<int64_t>());
    }
    const SafetensorsFile* file = opened ? &*opened : nullptr;
    share(found);
    if (found[0] == 0) return false;
    std::vector<double> numbers = to_numbers(state);
    if (file != nullptr) {
        const at::Tensor values = stored(*file, "state");
        if (values.scalar_type() != at::kDouble || values.numel() != static_cast<int64_t>(numbers.size()))
            fail(ErrorCode::input, "train", "checkpoint '{}': its state is malformed - remove it", path_);
        std::memcpy(numbers.data(), values.data_ptr<double>(), values.nbytes());
    }
    share(numbers);
    state = from_numbers(numbers);
    const Shares& shares = optimizer.shares();
    if (found[1] > 0) {
        best = at::empty_like(optimizer.state().at("m"));
        restore(file, kBest, shares, best);
    }
    const at::Tensor weights = optimizer.own_weights();
    restore(file, kWeights, shares, weights);
    optimizer.set_own_weights(weights);
    if (state.finished) return true;
    for (const auto& [key, own] : optimizer.state())
        if (key != "weights") restore(file, kOptimizer + key + ".", shares, own);
    optimizer.set_steps(static_cast<int64_t>(found[2]));
    return true;
}

}  // namespace refold
