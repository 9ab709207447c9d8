#include "compress/training/layerwise.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibrate/residual_stream.h"
#include "compress/method/lazy.h"
#include "compress/method/work.h"
#include "compress/training/divergence.h"
#include "compress/training/trained_types.h"
#include "compress/training/training.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "train/metrics.h"
#include "train/trained.h"

namespace refold {
namespace layerwise {
namespace {

// A use of a stored tensor.
struct Use {
    size_t layer;
    Slot slot;
    std::optional<HeadRun> run;  // none: the whole tensor is used
};
using Uses = std::map<std::string, std::vector<Use>>;

Uses uses_of(const Topology& topology) {
    Uses uses;
    const auto add = [&](size_t layer, const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            const Expression base = base_of(expression);
            const auto* heads = std::get_if<Heads>(&base);
            if (heads != nullptr) {
                for (const HeadRun& run : heads->runs) uses[run.tensor].push_back({layer, slot, run});
            }
            for (const auto& name : tensors_of(heads == nullptr ? base : Expression()))
                uses[name].push_back({layer, slot, std::nullopt});
            if (const auto* plus = std::get_if<Plus>(&expression)) {
                for (const auto& name : tensors_of(plus->term))
                    uses[name].push_back({layer, slot, std::nullopt});
            }
        }
    };
    for (size_t p = 0; p < topology.layers.size(); ++p) add(p, topology.layers[p]);
    add(kWholeModel, topology.globals);
    return uses;
}

// The parts of a tensor that `layer` must not train: heads that other layers use, or that it does not use
// itself. Nothing when no head is its own.
std::optional<std::vector<FrozenPart>> frozen_heads(const Model& model, const std::string& name,
                                                    const std::vector<Use>& uses, size_t layer) {
    const bool columns = heads_are_columns(uses.front().slot);
    const Tensor& tensor = model.tensor(name);
    const int64_t width = model.config.head_dim;
    const auto heads = static_cast<size_t>((columns ? tensor.row_elements() : tensor.rows()) / width);
    std::vector<bool> own(heads), others(heads);
    for (const Use& use : uses) {
        if (!consists_of_heads(use.slot)) return std::nullopt;
        auto& used = use.layer == layer ? own : others;
        const HeadRun run = use.run.value_or(HeadRun{name, 0, static_cast<int64_t>(heads)});
        for (int64_t h = run.first; h < run.first + run.count; ++h) used[static_cast<size_t>(h)] = true;
    }
    std::vector<FrozenPart> frozen;
    for (size_t h = 0; h < heads; ++h) {
        if (!own[h] || others[h]) frozen.push_back({columns, static_cast<int64_t>(h) * width, width});
    }
    if (frozen.size() == heads) return std::nullopt;
    return frozen;
}

class LayerTasks {
public:
    LayerTasks(const Model& model, const std::set<std::string>& selected)
        : model_(model), selected_(selected), uses_(uses_of(model.topology)) {}

    LayerTask at(size_t layer) const {
        LayerTask task{{layer}, {}};
        std::set<size_t> together = {layer};
        add(layer, task, &together);
        together.erase(layer);
        for (const size_t other : together) {
            task.layers.push_back(other);
            add(other, task, nullptr);
        }
        return task;
    }

private:
    // `together` collects the layers that have trained tensors in common with `layer`; null: such tensors are
    // skipped.
    void add(size_t layer, LayerTask& task, std::set<size_t>* together) const {
        for (const auto& [slot, expression] : model_.topology.layers[layer]) {
            for (const auto& name : tensors_of(expression)) {
                if (!selected_.contains(name)) continue;
                const std::vector<Use>& uses = uses_.at(name);
                std::set<size_t> users;
                bool in_heads = false;
                for (const Use& use : uses) {
                    users.insert(use.layer);
                    in_heads |= use.run.has_value();
                }
                if (users.size() == 1) {
                    task.tensors[name];
                } else if (in_heads) {
                    if (auto frozen = frozen_heads(model_, name, uses, layer))
                        task.tensors[name] = std::move(*frozen);
                } else if (together != nullptr && *users.begin() == layer && !users.contains(kWholeModel)) {
                    together->insert(users.begin(), users.end());
                    task.tensors[name];
                }
            }
        }
    }

    const Model& model_;
    const std::set<std::string>& selected_;
    Uses uses_;
};

}  // namespace

std::vector<LayerTask> layer_tasks(const Model& model, const std::set<std::string>& selected) {
    const LayerTasks all(model, selected);
    std::vector<LayerTask> out;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) out.push_back(all.at(p));
    return out;
}

namespace {

using nlohmann::json;
using Residuals = std::vector<std::vector<float>>;  // by sequence

Streams views(const Residuals& residuals) { return {residuals.begin(), residuals.end()}; }

// The residuals after a layer, for a stream that stands before it (or before the layer that lends it
// attention).
Residuals after(const ResidualStream& stream, const Model& model, size_t layer) {
    ResidualStream::Pass pass(stream, model, layer, {});
    Residuals out;
    for (size_t s = 0; s < stream.sequences(); ++s) {
        const auto rows = pass.run(s);
        out.emplace_back(rows.begin(), rows.end());
    }
    return out;
}

class LayerwiseTraining {
public:
    LayerwiseTraining(const Model& model, Step& step, const TrainOptions& options, const std::string& type)
        : before_(model),
          model_(model),
          step_(step),
          options_(options),
          type_of_(before_, type),
          tasks_(layer_tasks(model, trained_tensors(model, options.train))) {
        for (const LayerTask& task : tasks_) trained_ += task.tensors.empty() ? 0 : 1;
        if (trained_ == 0)
            fail(ErrorCode::usage, "layerwise",
                 "train={} names no tensor of a layer that could be trained by itself: heads or factors that "
                 "layers share stay as they are",
                 options.train);
    }

    Model run() {
        if (step_.dry_run()) {
            for (const LayerTask& task : tasks_) {
                for (const auto& [name, frozen] : task.tensors)
                    install(model_, name, lazy::constant(DType::F32, model_.tensor(name).shape, 0));
            }
            return finish();
        }
        if (step_.training != nullptr && !step_.training->metrics.empty())
            metrics_.emplace(fmt::format("{}/step-{}", step_.training->metrics, step_.number), 0);
        Progress progress("layer by layer", trained_ * static_cast<uint64_t>(options_.steps), "steps");
        for (size_t p = 0; p < tasks_.size(); ++p) {
            if (!tasks_[p].tensors.empty()) train(p, progress);
            pending_ = p + 1;
        }
        progress.finish();
        keep_the_best();
        return finish();
    }

private:
    void train(size_t p, Progress& progress) {
        int64_t reported = 0;
        const ResultKey key{kTraining, {{"step", step_.identity}, {"layer", p}}};
        const auto stored = step_.work->results(key, {}, [&] {
            return compute(p, [&](int64_t step, double error) {
                progress.advance(static_cast<uint64_t>(step - reported),
                                 fmt::format("layer {}, error {:.3g}", p, error));
                reported = step;
            });
        });
        progress.advance(static_cast<uint64_t>(options_.steps - reported));
        auto& tensors = done_.emplace_back();
        for (const auto& [name, tensor] : stored) {
            if (name == kFigures) continue;
            tensors[name] = tensor;
            install(model_, name, tensor);
        }
        const auto figures = lazy::floats(stored.at(kFigures), nullptr);
        if (metrics_)
            metrics_->write({static_cast<int64_t>(p),
                             {{"held_out_before", static_cast<double>(figures[0])},
                              {"held_out_after", static_cast<double>(figures[1])}}});
        details_.push_back({{"layer", p},
                            {"together", tasks_[p].layers},
                            {"tensors", tasks_[p].tensors.size()},
                            {"steps", figures[2]},
                            {"error_before", figures[0]},
                            {"error_after", figures[1]}});
    }

    static constexpr Computation kTraining{"layerwise", 1};

    Arrays compute(size_t p, const std::function<void(int64_t, double)>& report) {
        const LayerTask& task = tasks_[p];
        advance_streams();
        std::vector<Residuals> inputs(task.layers.size()), targets(task.layers.size());
        std::vector<FitPlace> places;
        targets[0] = after(*original_, step_.original, p);
        FitPlace& own = places.emplace_back(FitPlace{{modified_->layer(), p + 1}, {}, views(targets[0])});
        for (size_t s = 0; s < modified_->sequences(); ++s) own.inputs.push_back(modified_->residual(s));
        if (task.layers.size() > 1) look_ahead(task.layers, inputs, targets, places);
        const RangeFitResult fitted = fit_ranges({.model = model_,
                                                  .places = places,
                                                  .held_out = step_.calibration->fit.size(),
                                                  .tensors = task.tensors,
                                                  .options = options_,
                                                  .threads = step_.threads,
                                                  .report = report,
                                                  .stop = [] { return interrupted(); }});
        Arrays out = {{kFigures,
                       {{3},
                        {static_cast<float>(fitted.held_out_before),
                         static_cast<float>(fitted.held_out_after), static_cast<float>(fitted.steps)}}}};
        for (const auto& [name, values] : fitted.tensors) out[name] = {model_.tensor(name).shape, values};
        if (step_.original.topology.sources.empty()) original_->advance(p, std::move(targets[0]));
        return out;
    }

    // The later layers of a task, with the streams before the layers in between have been trained.
    void look_ahead(const std::vector<size_t>& layers, std::vector<Residuals>& inputs,
                    std::vector<Residuals>& targets, std::vector<FitPlace>& places) {
        ResidualStream modified = *modified_;
        size_t at = layers.front();
        for (size_t i = 1; i < layers.size(); ++i) {
            for (; at < layers[i]; ++at) modified.advance(model_, at);
            for (size_t s = 0; s < modified.sequences(); ++s) {
                const auto rows = modified.residual(s);
                inputs[i].emplace_back(rows.begin(), rows.end());
            }
            targets[i] = after(original_before(i, at), step_.original, at);
            places.push_back({{modified.layer(), at + 1}, views(inputs[i]), views(targets[i])});
        }
    }

    // The original's stream before layer i of a task. The original does not change, so the stream of the last
    // task is advanced when possible.
    const ResidualStream& original_before(size_t i, size_t layer) {
        auto found = ahead_.find(i);
        if (found == ahead_.end() || found->second.at > layer)
            found = ahead_.insert_or_assign(i, StreamAhead{*original_, advanced_}).first;
        StreamAhead& ahead = found->second;
        for (; ahead.at < layer; ++ahead.at) ahead.stream.advance(step_.original, ahead.at);
        return ahead.stream;
    }

    void advance_streams() {
        if (!original_) {
            std::vector<std::vector<int32_t>> tokens = step_.calibration->fit;
            const auto& held_out = step_.calibration->held_out;
            tokens.insert(tokens.end(), held_out.begin(), held_out.end());
            const int64_t length = step_.calibration->options.length;
            original_.emplace(step_.original, tokens, length, step_.threads);
            modified_.emplace(model_, tokens, length, step_.threads);
        }
        for (; advanced_ < pending_; ++advanced_) {
            check_interrupt();
            if (original_->layer() <= advanced_) original_->advance(step_.original, advanced_);
            modified_->advance(model_, advanced_);
        }
    }

    void install(Model& model, const std::string& name, const Tensor& trained) const {
        model.tensors.at(name) = as_type(trained, type_of_(name));
    }

    // The model with the results of the first `count` layers that were trained.
    Model with(size_t count) const {
        Model out = before_;
        for (size_t i = 0; i < count; ++i)
            for (const auto& [name, tensor] : done_[i]) install(out, name, tensor);
        return out;
    }

    // Every layer came nearer to its target, but a residual stream that is nearer need not predict better: in
    // a model far from the original, errors that cancelled each other no longer do, and a tensor of several
    // layers was trained with inputs that the layers between them have changed since. So predictions decide
    // about the whole: all layers, the first half of them, a quarter and so on, or none.
    void keep_the_best() {
        if (!HeldOutDivergence::possible(before_) || !HeldOutDivergence::possible(step_.original)) return;
        const ResultKey key{kChoice, {{"step", step_.identity}}};
        const auto stored = step_.work->results(key, {}, [&] {
            const HeldOutDivergence divergence(step_.original, step_.calibration->held_out, step_.threads);
            const double before = divergence.of(before_);
            double all = 0, after = before;
            size_t kept = 0;
            for (size_t count = done_.size(); count > 0; count /= 2) {
                const double now = divergence.of(with(count));
                if (count == done_.size()) all = now;
                if (now >= after) continue;
                kept = count;
                after = now;
            }
            return Arrays{{kFigures,
                           {{4},
                            {static_cast<float>(kept), static_cast<float>(before), static_cast<float>(all),
                             static_cast<float>(after)}}}};
        });
        choice_ = lazy::numbers(stored.at(kFigures));
        if (const auto kept = static_cast<size_t>((*choice_)[0]); kept < done_.size()) model_ = with(kept);
    }

    Model finish() {
        double before = 0, after = 0;
        for (const json& d : details_) {
            before += d["error_before"].get<double>();
            after += d["error_after"].get<double>();
        }
        auto& lines = step_.report.lines;
        if (!details_.empty()) {
            const auto count = static_cast<double>(details_.size());
            lines.push_back(
                fmt::format("{} layers trained; error of the residual stream on held-out text, mean of the "
                            "layers: {:.3g} -> {:.3g}",
                            details_.size(), before / count, after / count));
        }
        json details = {{"objective", "layerwise"}, {"layers", details_}};
        if (choice_) {
            const auto kept = static_cast<size_t>((*choice_)[0]);
            const double start = (*choice_)[1], all = (*choice_)[2], end = (*choice_)[3];
            if (kept < done_.size())
                lines.push_back(fmt::format(
                    "with all of them the divergence from the original is {:.4g}, with the first {} it is "
                    "{:.4g}: these are kept",
                    all, kept, end));
            lines.push_back(fmt::format(
                "divergence from the original on held-out text {:.4g} -> {:.4g} nats per token", start, end));
            details["layers_kept"] = kept;
            details["divergence_before"] = start;
            details["divergence_after"] = end;
        }
        size_t converted = 0;
        for (const auto& [name, tensor] : before_.tensors)
            converted += !is_float(tensor.type) && is_float(model_.tensor(name).type) ? 1 : 0;
        if (converted > 0)
            lines.push_back(
                fmt::format("{} quantized tensors were trained and are 16 bits now: refold quantize makes "
                            "them small again",
                            converted));
        step_.report.details = details.dump();
        return std::move(model_);
    }

    static constexpr Computation kChoice{"layerwise choice", 2};
    static constexpr const char* kFigures = "figures";

    const Model& before_;
    Model model_;
    Step& step_;
    TrainOptions options_;
    TrainedTypes type_of_;
    std::vector<LayerTask> tasks_;
    uint64_t trained_ = 0;
    std::optional<MetricsFiles> metrics_;  // an entry for each layer
    std::optional<ResidualStream> original_, modified_;
    struct StreamAhead {
        ResidualStream stream;
        size_t at;
    };
    std::map<size_t, StreamAhead> ahead_;  // of the original, by index into LayerTask::layers
    size_t pending_ = 0;                   // layers in their final form
    size_t advanced_ = 0;                  // layers that the streams have passed
    std::vector<json> details_;
    std::vector<std::map<std::string, Tensor>> done_;  // float32, by task that trains something
    std::optional<std::vector<double>> choice_;        // layers kept; divergence before, with all, after
};

}  // namespace
}  // namespace layerwise

Model train_layerwise(const Model& model, Step& step, const TrainOptions& options, const std::string& type) {
    if (model.topology.layers.size() != step.original.topology.layers.size())
        fail(ErrorCode::unsupported, "layerwise", "the model has {} layers, the original {}",
             model.topology.layers.size(), step.original.topology.layers.size());
    if (!model.config.causal || model.config.n_prefix != step.original.config.n_prefix)
        fail(ErrorCode::unsupported, "layerwise", "only decoders without new prefixes can be calibrated");
    if (options.steps < 1)
        fail(ErrorCode::usage, "layerwise", "steps: got {}, expected 1 or more", options.steps);
    if (options.weight_decay != 0)
        fail(ErrorCode::usage, "layerwise", "weight_decay has no meaning here, got {}", options.weight_decay);
    return layerwise::LayerwiseTraining(model, step, options, type).run();
}

}  // namespace refold
