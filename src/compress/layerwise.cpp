#include "compress/layerwise.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibrate/residual_stream.h"
#include "compress/lazy.h"
#include "compress/trained_types.h"
#include "compress/training.h"
#include "compress/work.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "train/metrics.h"
#include "train/trained.h"

namespace refold {
namespace layerwise {
namespace {

// Where a stored tensor is used.
struct Use {
    size_t position;
    Slot slot;
    std::optional<HeadRun> run;  // none: the whole tensor
};
using Uses = std::map<std::string, std::vector<Use>>;

Uses uses_of(const Topology& topology) {
    Uses uses;
    const auto add = [&](size_t position, const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            const Expression base = base_of(expression);
            const auto* heads = std::get_if<Heads>(&base);
            if (heads != nullptr) {
                for (const HeadRun& run : heads->runs) uses[run.tensor].push_back({position, slot, run});
            }
            for (const auto& name : tensors_of(heads == nullptr ? base : Expression()))
                uses[name].push_back({position, slot, std::nullopt});
            if (const auto* plus = std::get_if<Plus>(&expression)) {
                for (const auto& name : tensors_of(plus->term))
                    uses[name].push_back({position, slot, std::nullopt});
            }
        }
    };
    for (size_t p = 0; p < topology.positions.size(); ++p) add(p, topology.positions[p]);
    add(kModelPosition, topology.globals);
    return uses;
}

// Parts of a tensor whose heads others use, or that `position` does not use itself. Nothing where no head is
// its own.
std::optional<std::vector<FrozenPart>> frozen_heads(const Model& model, const std::string& name,
                                                    const std::vector<Use>& uses, size_t position) {
    const bool columns = heads_are_columns(uses.front().slot);
    const Tensor& tensor = model.tensor(name);
    const int64_t width = model.config.head_dim;
    const auto heads = static_cast<size_t>((columns ? tensor.row_elements() : tensor.rows()) / width);
    std::vector<bool> own(heads), others(heads);
    for (const Use& use : uses) {
        if (!consists_of_heads(use.slot)) return std::nullopt;
        auto& used = use.position == position ? own : others;
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

class Turns {
public:
    Turns(const Model& model, const std::set<std::string>& selected)
        : model_(model), selected_(selected), uses_(uses_of(model.topology)) {}

    Turn at(size_t position) const {
        Turn turn{{position}, {}};
        std::set<size_t> together = {position};
        add(position, turn, &together);
        together.erase(position);
        for (const size_t other : together) {
            turn.positions.push_back(other);
            add(other, turn, nullptr);
        }
        return turn;
    }

private:
    // `together`: takes the positions of tensors in common, which are trained then.
    void add(size_t position, Turn& turn, std::set<size_t>* together) const {
        for (const auto& [slot, expression] : model_.topology.positions[position]) {
            for (const auto& name : tensors_of(expression)) {
                if (!selected_.contains(name)) continue;
                const std::vector<Use>& uses = uses_.at(name);
                std::set<size_t> users;
                bool in_heads = false;
                for (const Use& use : uses) {
                    users.insert(use.position);
                    in_heads |= use.run.has_value();
                }
                if (users.size() == 1) {
                    turn.tensors[name];
                } else if (in_heads) {
                    if (auto frozen = frozen_heads(model_, name, uses, position))
                        turn.tensors[name] = std::move(*frozen);
                } else if (together != nullptr && *users.begin() == position &&
                           !users.contains(kModelPosition)) {
                    together->insert(users.begin(), users.end());
                    turn.tensors[name];
                }
            }
        }
    }

    const Model& model_;
    const std::set<std::string>& selected_;
    Uses uses_;
};

}  // namespace

std::vector<Turn> turns(const Model& model, const std::set<std::string>& selected) {
    const Turns all(model, selected);
    std::vector<Turn> out;
    for (size_t p = 0; p < model.topology.positions.size(); ++p) out.push_back(all.at(p));
    return out;
}

namespace {

using nlohmann::json;
using Residuals = std::vector<std::vector<float>>;  // by sequence

Streams views(const Residuals& residuals) { return {residuals.begin(), residuals.end()}; }

// Behind a position, of a stream that stands before it (or before what it takes its attention from).
Residuals behind(const ResidualStream& stream, const Model& model, size_t position) {
    ResidualStream::Pass pass(stream, model, position, {});
    Residuals out;
    for (size_t s = 0; s < stream.sequences(); ++s) {
        const auto rows = pass.run(s);
        out.emplace_back(rows.begin(), rows.end());
    }
    return out;
}

class Training {
public:
    Training(const Model& model, Step& step, const TrainOptions& options, const std::string& type)
        : before_(model),
          model_(model),
          step_(step),
          options_(options),
          type_of_(before_, type),
          turns_(turns(model, trained_tensors(model, options.train))) {
        for (const Turn& turn : turns_) trained_ += turn.tensors.empty() ? 0 : 1;
        if (trained_ == 0)
            fail(ErrorCode::usage, "layerwise",
                 "train={} names no tensor of a layer that could be trained by itself: heads or factors that "
                 "layers share stay as they are",
                 options.train);
    }

    Model run() {
        if (step_.dry_run()) {
            for (const Turn& turn : turns_) {
                for (const auto& [name, frozen] : turn.tensors) {
                    const Tensor& before = model_.tensor(name);
                    install(name, lazy::constant(DType::F32, before.shape, 0));
                }
            }
            return finish();
        }
        if (step_.training != nullptr && !step_.training->metrics.empty())
            metrics_.emplace(fmt::format("{}/step-{}", step_.training->metrics, step_.number), 0);
        Progress progress("layer by layer", trained_ * static_cast<uint64_t>(options_.steps), "steps");
        for (size_t p = 0; p < turns_.size(); ++p) {
            if (!turns_[p].tensors.empty()) train(p, progress);
            pending_ = p + 1;
        }
        progress.finish();
        return finish();
    }

private:
    void train(size_t p, Progress& progress) {
        int64_t reported = 0;
        const auto stored =
            step_.work->results(fmt::format("layerwise v1 {} {}", step_.identity, p), {}, [&] {
                return compute(p, [&](int64_t step, double error) {
                    progress.advance(static_cast<uint64_t>(step - reported),
                                     fmt::format("layer {}, error {:.3g}", p, error));
                    reported = step;
                });
            });
        progress.advance(static_cast<uint64_t>(options_.steps - reported));
        for (const auto& [name, tensor] : stored) {
            if (name != kFigures) install(name, tensor);
        }
        const auto figures = lazy::floats(stored.at(kFigures), nullptr);
        if (metrics_)
            metrics_->write({static_cast<int64_t>(p),
                             {{"held_out_before", static_cast<double>(figures[0])},
                              {"held_out_after", static_cast<double>(figures[1])}}});
        details_.push_back({{"position", p},
                            {"together", turns_[p].positions},
                            {"tensors", turns_[p].tensors.size()},
                            {"steps", figures[2]},
                            {"error_before", figures[0]},
                            {"error_after", figures[1]}});
    }

    Arrays compute(size_t p, const std::function<void(int64_t, double)>& report) {
        const Turn& turn = turns_[p];
        advance_streams();
        std::vector<Residuals> inputs(turn.positions.size()), targets(turn.positions.size());
        std::vector<FitPlace> places;
        targets[0] = behind(*original_, step_.original, p);
        FitPlace& own = places.emplace_back(FitPlace{{modified_->position(), p + 1}, {}, views(targets[0])});
        for (size_t s = 0; s < modified_->sequences(); ++s) own.inputs.push_back(modified_->residual(s));
        if (turn.positions.size() > 1) look_ahead(turn.positions, inputs, targets, places);
        const RangeFitResult fitted = fit_ranges({.model = model_,
                                                  .places = places,
                                                  .held_out = step_.calibration->fit.size(),
                                                  .tensors = turn.tensors,
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

    // Later places of what is trained: the streams as they are before the positions in between have had their
    // turn.
    void look_ahead(const std::vector<size_t>& positions, std::vector<Residuals>& inputs,
                    std::vector<Residuals>& targets, std::vector<FitPlace>& places) {
        ResidualStream modified = *modified_;
        size_t at = positions.front();
        for (size_t i = 1; i < positions.size(); ++i) {
            for (; at < positions[i]; ++at) modified.advance(model_, at);
            for (size_t s = 0; s < modified.sequences(); ++s) {
                const auto rows = modified.residual(s);
                inputs[i].emplace_back(rows.begin(), rows.end());
            }
            targets[i] = behind(original_before(i, at), step_.original, at);
            places.push_back({{modified.position(), at + 1}, views(inputs[i]), views(targets[i])});
        }
    }

    // Before a turn's position i: the original does not change, so what the last turn looked at goes on.
    const ResidualStream& original_before(size_t i, size_t position) {
        auto found = ahead_.find(i);
        if (found == ahead_.end() || found->second.at > position)
            found = ahead_.insert_or_assign(i, Ahead{*original_, advanced_}).first;
        Ahead& ahead = found->second;
        for (; ahead.at < position; ++ahead.at) ahead.stream.advance(step_.original, ahead.at);
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
            if (original_->position() <= advanced_) original_->advance(step_.original, advanced_);
            modified_->advance(model_, advanced_);
        }
    }

    void install(const std::string& name, const Tensor& trained) {
        Tensor& tensor = model_.tensors.at(name);
        const DType type = type_of_(name);
        if (!is_float(tensor.type)) converted_.insert(name);
        tensor = as_type(trained, type);
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
        if (!converted_.empty())
            lines.push_back(
                fmt::format("{} quantised tensors were trained and are 16 bits now: refold quantize makes "
                            "them small again",
                            converted_.size()));
        step_.report.details = json{{"objective", "layerwise"}, {"layers", details_}}.dump();
        return std::move(model_);
    }

    static constexpr const char* kFigures = "figures";

    const Model& before_;
    Model model_;
    Step& step_;
    TrainOptions options_;
    TrainedTypes type_of_;
    std::vector<Turn> turns_;
    uint64_t trained_ = 0;
    std::optional<MetricsFiles> metrics_;  // an entry for every position
    std::optional<ResidualStream> original_, modified_;
    struct Ahead {
        ResidualStream stream;
        size_t at;
    };
    std::map<size_t, Ahead> ahead_;      // of the original, by the place in a turn
    size_t pending_ = 0, advanced_ = 0;  // positions in their final form; those that the streams are behind
    std::vector<json> details_;
    std::set<std::string> converted_;
};

}  // namespace
}  // namespace layerwise

Model train_layerwise(const Model& model, Step& step, const TrainOptions& options, const std::string& type) {
    if (model.topology.positions.size() != step.original.topology.positions.size())
        fail(ErrorCode::unsupported, "layerwise", "the model has {} layers, the original {}",
             model.topology.positions.size(), step.original.topology.positions.size());
    if (!model.config.causal || model.config.n_prefix != step.original.config.n_prefix)
        fail(ErrorCode::unsupported, "layerwise", "only decoders without new prefixes can be calibrated");
    if (options.steps < 1)
        fail(ErrorCode::usage, "layerwise", "steps: got {}, expected 1 or more", options.steps);
    if (options.weight_decay != 0)
        fail(ErrorCode::usage, "layerwise", "weight_decay has no meaning here, got {}", options.weight_decay);
    return layerwise::Training(model, step, options, type).run();
}

}  // namespace refold
