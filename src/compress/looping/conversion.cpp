#include "compress/looping/conversion.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/looping/norm_folding.h"
#include "compress/method/lazy.h"
#include "compress/method/selection.h"
#include "core/error.h"
#include "model/without_sharing.h"

namespace refold {
namespace recursive {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

// Functions, since relax uses them before this file's constants are initialized.
Names tying_names() { return {"cycle", "sequence", "cycle_rev"}; }
Names init_names() { return {"stepwise", "average", "lower", "random", "fixed_start"}; }
Names norms_names() { return {"init", "average", "choose", "keep", "fold", "zero"}; }

// The enumerations are in the order of their names.
template <typename E>
E choice(const Options& options, const char* option, const Names& names) {
    const auto found = std::find(names.begin(), names.end(), options.text(option));
    return static_cast<E>(found - names.begin());
}
template <typename E>
std::string name_of(E value, const Names& names) {
    return names[static_cast<size_t>(value)];
}

bool is_gain(Slot slot) { return properties(slot).kind == SlotKind::norm_gain; }

// Checkpoints of Gemma hold a norm's gain minus one.
float zero_of_checkpoint(const Family& family, Slot slot) {
    const auto& slots = family.layer_slots;
    return std::any_of(
               slots.begin(), slots.end(),
               [&](const SlotDescription& d) { return d.slot == slot && (d.layout & hf_plus_one) != 0; })
               ? 1.0F
               : 0.0F;
}

// Slots that hold ones or zeros after folding.
bool is_folded(Slot slot) {
    return std::any_of(kMatrices.begin(), kMatrices.end(), [&](Slot matrix) {
        const auto norm = properties(matrix).norm;
        return norm && (slot == *norm || slot == bias_of(*norm));
    });
}

// True when each slot of each layer is a whole tensor that nothing else uses.
bool has_own_weights(const Model& model) {
    std::set<std::string> seen;
    for (const auto& slots : model.topology.layers) {
        for (const auto& [slot, expression] : slots) {
            const auto* dense = std::get_if<Dense>(&expression);
            if (dense == nullptr || !seen.insert(dense->tensor).second) return false;
        }
    }
    return true;
}

Model with_own_weights(const Model& model) {
    if (has_own_weights(model)) return model;
    if (!model.config.heads_kv.empty() || !model.config.ffs.empty() || model.config.n_prefix > 0)
        fail(ErrorCode::unsupported, "recursive",
             "an earlier step shared weights, and one pruned layers or gave them prefixes: make the model "
             "recursive first");
    return without_sharing(model);
}

// Layers that use a stored layer must have the slots and sizes of the layers that it is made from.
void check_alike(const Model& model, const Plan& plan) {
    if (model.config.n_stream > 1)
        fail(ErrorCode::unsupported, "recursive",
             "'{}' has {} residual streams and inputs of each layer: its layers cannot run in loops",
             model.config.family, model.config.n_stream);
    const auto slots_of = [&](size_t p) {
        std::vector<Slot> slots;
        for (const auto& [slot, expression] : model.topology.layers[p]) {
            if (!is_prefix(slot)) slots.push_back(slot);
        }
        return slots;
    };
    for (size_t k = 0; k < plan.sources.size(); ++k) {
        std::vector<size_t> alike = plan.members(k);
        alike.insert(alike.end(), plan.sources[k].begin(), plan.sources[k].end());
        const size_t first = alike.front();
        for (const size_t p : alike) {
            if (slots_of(p) != slots_of(first))
                fail(ErrorCode::unsupported, "recursive",
                     "layers {} and {} would share a layer, but one has modules or norms that the other "
                     "lacks: prune after this step",
                     first, p);
            for (const Slot slot : slots_of(p)) {
                const SlotShape a = slot_shape(slot, model.config, first),
                                b = slot_shape(slot, model.config, p);
                if (a.in != b.in || a.out != b.out)
                    fail(ErrorCode::unsupported, "recursive",
                         "layers {} and {} would share a layer, but {} is {} x {} in one and {} x {} in "
                         "the "
                         "other: prune after this step",
                         first, p, slot_name(slot), a.out, a.in, b.out, b.in);
            }
        }
    }
}

class LayerTying {
public:
    LayerTying(const Model& original, const Plan& plan, const Settings& settings)
        : original_(original), plan_(plan), settings_(settings), out_(original) {}

    Model tie() {
        out_.tensors.clear();
        for (const auto& [slot, expression] : original_.topology.globals) {
            for (const auto& name : tensors_of(expression)) out_.tensors[name] = original_.tensor(name);
        }
        for (size_t p = 0; p < plan_.stored.size(); ++p) {
            for (auto& [slot, expression] : out_.topology.layers[p]) {
                const bool own = stays_own(slot);
                const std::string name = tensor_name_of(slot, own ? p : plan_.stored[p]);
                if (!out_.tensors.contains(name))
                    out_.tensors[name] = own ? stored(p, slot) : tied(plan_.stored[p], slot, name);
                expression = Dense{name};
            }
        }
        if (settings_.tying != Tying::sequence) out_.topology.loops = settings_.loops;
        return std::move(out_);
    }

private:
    // Families have no names for prefixes.
    std::string tensor_name_of(Slot slot, size_t p) const {
        return is_prefix(slot) ? tensor_of(p, slot) : tensor_name(*original_.family, slot, p);
    }
    const std::string& tensor_of(size_t p, Slot slot) const {
        return std::get<Dense>(original_.topology.at(p, slot)).tensor;
    }
    const Tensor& stored(size_t p, Slot slot) const { return original_.tensor(tensor_of(p, slot)); }

    bool stays_own(Slot slot) const {
        if (is_prefix(slot)) return true;
        if (!is_vector(slot)) return false;
        return settings_.norms == Norms::keep || (settings_.norms == Norms::fold && !is_folded(slot));
    }

    std::vector<size_t> sources_of(size_t k, Slot slot) const {
        const std::vector<size_t>& sources = plan_.sources[k];
        if (!is_vector(slot) || sources.empty()) return sources;
        switch (settings_.norms) {
            case Norms::average: return plan_.members(k);
            case Norms::choose:
            case Norms::fold: return {sources.front()};
            default: return sources;
        }
    }

    Tensor tied(size_t k, Slot slot, const std::string& name) const {
        const SlotKind kind = properties(slot).kind;
        if (settings_.norms == Norms::zero && (kind == SlotKind::norm_gain || kind == SlotKind::norm_bias))
            return lazy::constant(DType::F32, stored(plan_.members(k).front(), slot).shape,
                                  zero_of_checkpoint(*original_.family, slot));
        const std::vector<size_t> sources = sources_of(k, slot);
        if (sources.size() == 1) return stored(sources.front(), slot);
        std::vector<Tensor> tensors;
        std::vector<std::string> names;
        for (const size_t p : sources.empty() ? plan_.members(k) : sources) {
            tensors.push_back(stored(p, slot));
            names.push_back(tensor_of(p, slot));
        }
        const DType type = is_vector(slot) ? DType::F32 : computed_type(settings_.type, original_, names);
        if (!sources.empty()) return lazy::mean(type, tensors, original_.source);
        if (is_vector(slot)) return lazy::constant(type, tensors.front().shape, is_gain(slot) ? 1.0F : 0.0F);
        return lazy::random(type, tensors.front().shape, {.seed = settings_.seed}, name);
    }

    const Model& original_;
    const Plan& plan_;
    const Settings& settings_;
    Model out_;
};

size_t stored_layer(size_t p, size_t layers, const Settings& s) {
    const auto loops = static_cast<size_t>(s.loops), block = layers / loops;
    if (s.tying == Tying::sequence) return p / loops;
    const bool backwards = s.tying == Tying::cycle_rev && p / block % 2 == 1;
    return backwards ? block - 1 - p % block : p % block;
}

// floor(k (layers - 1) / (block - 1) + 1/2), exactly.
size_t stepwise_source(size_t k, size_t layers, size_t block) {
    return block == 1 ? 0 : (2 * k * (layers - 1) + (block - 1)) / (2 * (block - 1));
}

}  // namespace

std::vector<size_t> Plan::members(size_t k) const {
    std::vector<size_t> layers;
    for (size_t p = 0; p < stored.size(); ++p) {
        if (stored[p] == k) layers.push_back(p);
    }
    return layers;
}

std::vector<OptionSpec> option_specs(const std::string& init) {
    using Kind = OptionSpec::Kind;
    return {
        {"loops", Kind::integer, "2", "times that the block runs; must divide the number of layers", 1, 4096},
        {.name = "tying",
         .kind = Kind::choice,
         .fallback = "cycle",
         .help = "which layers use the same stored layer",
         .choices = tying_names()},
        {.name = "init",
         .kind = Kind::choice,
         .fallback = init,
         .help = "weights of the stored layers",
         .choices = init_names()},
        {.name = "norms",
         .kind = Kind::choice,
         .fallback = "init",
         .help = "norms and biases: tied (initialized like the weights, averaged, chosen or zero), kept, or "
                 "folded",
         .choices = norms_names()},
        seed_option("of random numbers"),
        type_option(),
    };
}

Settings settings_of(const Options& options) {
    return {.loops = options.integer("loops"),
            .tying = choice<Tying>(options, "tying", tying_names()),
            .init = choice<Init>(options, "init", init_names()),
            .norms = choice<Norms>(options, "norms", norms_names()),
            .seed = seed_of(options),
            .type = options.text("type")};
}

Plan make_plan(size_t layers, const Settings& s) {
    if (layers % static_cast<size_t>(s.loops) != 0) {
        std::string divisors;
        for (size_t d = 1; d <= layers; ++d) {
            if (layers % d == 0) divisors += fmt::format("{}{}", divisors.empty() ? "" : ", ", d);
        }
        fail(ErrorCode::usage, "recursive", "option 'loops': {} does not divide the {} layers; possible: {}",
             s.loops, layers, divisors);
    }
    const size_t block = layers / static_cast<size_t>(s.loops);
    Plan plan;
    for (size_t p = 0; p < layers; ++p) plan.stored.push_back(stored_layer(p, layers, s));
    for (size_t k = 0; k < block; ++k) {
        switch (s.init) {
            case Init::stepwise: plan.sources.push_back({stepwise_source(k, layers, block)}); break;
            case Init::average: plan.sources.push_back(plan.members(k)); break;
            case Init::lower: plan.sources.push_back({k}); break;
            case Init::random: plan.sources.emplace_back(); break;
            case Init::fixed_start: plan.sources.push_back({k * static_cast<size_t>(s.loops)}); break;
        }
    }
    return plan;
}

Conversion convert(const Model& model, const Settings& settings) {
    Conversion out{{}, {}, make_plan(model.topology.layers.size(), settings)};
    out.original = with_own_weights(model);
    check_alike(out.original, out.plan);
    if (settings.norms == Norms::fold) out.original = fold_norms(out.original, settings.type);
    out.tied = LayerTying(out.original, out.plan, settings).tie();
    return out;
}

void report(const Conversion& conversion, const Settings& s, StepReport& report) {
    const Plan& plan = conversion.plan;
    report.lines.push_back(fmt::format("{} layers = {} loops of {} stored layers, tying {}, init {}",
                                       plan.stored.size(), s.loops, plan.sources.size(),
                                       name_of(s.tying, tying_names()), name_of(s.init, init_names())));
    report.lines.push_back(fmt::format("stored layer of each layer: {}", fmt::join(plan.stored, " ")));
    std::vector<std::string> sources;
    for (const auto& from : plan.sources)
        sources.push_back(from.empty() ? "random" : fmt::format("{}", fmt::join(from, "+")));
    report.lines.push_back(fmt::format("source layers: {}", fmt::join(sources, " ")));
    report.details = json{
        {"loops", s.loops},
        {"tying", name_of(s.tying, tying_names())},
        {"init", name_of(s.init, init_names())},
        {"norms", name_of(s.norms, norms_names())},
        {"stored", plan.stored},
        {"sources",
         plan.sources}}.dump();
}

}  // namespace recursive
}  // namespace refold
