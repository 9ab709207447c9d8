#include "compress/factorization/factoring.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/method/lazy.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "core/text.h"
#include "linalg/blas_threads.h"
#include "linalg/device.h"
#include "linalg/svd.h"

namespace refold::factoring {
namespace {

constexpr int64_t kMemory = int64_t{3} << 30;

int jobs_at_once(const std::vector<Job>& jobs) {
    int64_t largest = 1;
    for (const Job& job : jobs) largest = std::max(largest, job.memory);
    if (blas::device() != nullptr) return 1;  // whose memory one of them may fill
    const int64_t threads = default_threads();
    const int64_t fit = std::min({kMemory / largest, threads, static_cast<int64_t>(jobs.size())});
    // A few jobs finish sooner when BLAS divides each of them.
    return fit * 2 > threads ? static_cast<int>(std::max<int64_t>(fit, 1)) : 1;
}

Tensor planned(const std::vector<int64_t>& shape) {
    return {DType::F32, shape, {}, []() -> std::vector<std::byte> {
                fail(ErrorCode::internal, "factoring", "a dry run has no values");
            }};
}

const std::string& dense_tensor(const Model& model, size_t layer, Slot slot) {
    const Expression& expression = model.topology.at(layer, slot);
    if (const auto* dense = std::get_if<Dense>(&expression)) return dense->tensor;
    const char* reason = "its heads are shared between layers, and factors of it would store them again";
    if (std::holds_alternative<Plus>(expression))
        reason = "it has a LoRA of its own beside weights that it shares";
    if (std::holds_alternative<LowRank>(expression) || std::holds_alternative<Tucker>(expression))
        reason = "an earlier step made factors of it";
    fail(ErrorCode::unsupported, "factoring",
         "layer {} {}: {} - put this step first, or leave the layer or slot out", layer, slot_name(slot),
         reason);
}

// A tensor that other layers keep would be stored in addition to the factors.
void check_not_used_elsewhere(const Model& model, const Layers& group, const std::vector<Slot>& slots) {
    std::set<std::string> own;
    for (const auto& name : sources_of(model, group.front(), slots)) own.insert(name);
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        const bool member = std::find(group.begin(), group.end(), p) != group.end();
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            if (member && std::find(slots.begin(), slots.end(), slot) != slots.end()) continue;
            for (const auto& name : tensors_of(expression)) {
                if (own.contains(name))
                    fail(
                        ErrorCode::unsupported, "factoring",
                        "layer {}: its tensor '{}' is also part of layer {} {}, which this step leaves as it "
                        "is - put this step first, or leave the layer out",
                        group.front(), name, p, slot_name(slot));
            }
        }
    }
}

}  // namespace

std::vector<Slot> slots_at(const Model& model, size_t layer, const std::vector<Slot>& slots) {
    std::vector<Slot> out;
    for (const Slot slot : slots) {
        if (model.topology.has(layer, slot)) out.push_back(slot);
    }
    return out;
}

std::vector<std::string> sources_of(const Model& model, size_t layer, const std::vector<Slot>& slots) {
    std::vector<std::string> out;
    for (const Slot slot : slots_at(model, layer, slots)) out.push_back(dense_tensor(model, layer, slot));
    return out;
}

std::vector<Layers> groups_of(const Model& model, const std::vector<size_t>& layers,
                              const std::vector<Slot>& slots) {
    std::vector<Layers> groups = tied_layers(model, layers, slots);
    for (const Layers& group : groups) sources_of(model, group.front(), slots);  // all dense?
    for (const Layers& group : groups) check_not_used_elsewhere(model, group, slots);
    return groups;
}

int64_t rank_of(double part, int64_t full) { return static_cast<int64_t>(static_cast<double>(full) * part); }

std::vector<float> weights_of(const Model& model, size_t layer, Slot slot) {
    std::vector<float> values = lazy::floats(model.tensor(dense_tensor(model, layer, slot)), model.source);
    const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
    if (bad != values.end()) {
        const int64_t index = bad - values.begin(), width = slot_shape(slot, model.config, layer).in;
        fail(ErrorCode::input, "factoring", "{}: layer {} {}: element [{}][{}] is {}", model.label, layer,
             slot_name(slot), index / width, index % width, *bad);
    }
    return values;
}

std::string place_text(const Layers& layers) {
    return (layers.size() == 1 ? "layer " : "layers ") + layers_text(layers);
}

std::string slots_text(const std::vector<Slot>& slots) {
    std::vector<std::string> names;
    for (const Slot slot : slots) names.emplace_back(slot_name(slot));
    return join(names, ", ");
}

std::vector<Tensors> run(const std::vector<Job>& jobs, Work* work, const std::string& label) {
    std::vector<Tensors> results(jobs.size());
    if (work == nullptr) {
        for (size_t i = 0; i < jobs.size(); ++i) {
            for (const auto& [name, shape] : jobs[i].shapes) results[i][name] = planned(shape);
        }
        return results;
    }
    Progress progress(label, jobs.size(), "decompositions");
    std::mutex mutex;
    const int at_once = jobs_at_once(jobs);
    const blas::SingleThread single(at_once > 1);
    parallel_for(static_cast<int64_t>(jobs.size()), at_once, [&](int64_t i) {
        single.in_this_thread();
        check_interrupt();
        const Job& job = jobs[static_cast<size_t>(i)];
        Tensors& result = results[static_cast<size_t>(i)];
        const std::vector<float> input = job.input();
        result = work->results(job.key, input, [&] { return job.compute(input); });
        for (const auto& [name, shape] : job.shapes) {
            if (result.at(name).shape != shape)
                fail(ErrorCode::internal, "factoring", "{}: {} is {} by {}, planned were {} by {}", job.place,
                     name, result.at(name).rows(), result.at(name).row_elements(),
                     Tensor{DType::F32, shape, {}, {}}.rows(), shape.front());
        }
        const std::lock_guard lock(mutex);
        progress.advance(1, job.place);
    });
    progress.finish();
    return results;
}

OptionSpec tolerance_option() {
    return {"tol",    OptionSpec::Kind::number,
            "0.0001", "stop when a sweep changes the relative error by less",
            0.0,      1.0};
}

OptionSpec sweeps_option() {
    return {"sweeps", OptionSpec::Kind::integer, "100", "sweeps at most", 1, 100000};
}

OptionSpec compare_option() {
    return {.name = "compare",
            .kind = OptionSpec::Kind::boolean,
            .fallback = "true",
            .help = "also report the error of truncated SVDs with as many numbers"};
}

double Squares::relative() const { return all > 0 ? std::sqrt(std::max(left, 0.0) / all) : 0; }

void Squares::operator+=(const Squares& other) {
    left += other.left;
    all += other.all;
}

Squares squares_of_svd(std::span<const float> matrix, int64_t out, int64_t in, int64_t rank) {
    Squares squares;
    const std::vector<double> values = singular_values(matrix, out, in);
    for (size_t i = 0; i < values.size(); ++i) {
        squares.all += values[i] * values[i];
        if (i >= static_cast<size_t>(rank)) squares.left += values[i] * values[i];
    }
    return squares;
}

nlohmann::json svd_details(const Layers& layers, Slot slot, double relative_error) {
    return {{"layers", layers}, {"slot", slot_name(slot)}, {"relative_error", relative_error}};
}

std::string sizes_text(int64_t before, int64_t after) {
    return fmt::format("{} numbers, {} before, compression {:.2f}x",
                       format_count(static_cast<uint64_t>(after)),
                       format_count(static_cast<uint64_t>(before)),
                       static_cast<double>(before) / static_cast<double>(after));
}

}  // namespace refold::factoring
