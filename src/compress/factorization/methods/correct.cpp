// Low-rank terms added to quantized weights in closed form, so that they err less on the inputs that they
// have.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compress/factorization/wanted_maps.h"
#include "compress/method/lazy.h"
#include "compress/method/selection.h"
#include "compress/rewrite/lora.h"
#include "core/error.h"
#include "core/progress.h"
#include "linalg/reduced_rank.h"
#include "model/materialize.h"

namespace refold::correct_method {
namespace {

using nlohmann::json;
using Floats = std::vector<float>;
using Tensors = std::map<std::string, Tensor>;

constexpr Computation kCorrections{"correct", 1};

Floats matrix_of(const Model& model, size_t layer, Slot slot) {
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

class Correction {
public:
    Correction(const Model& model, Step& step)
        : model_(model),
          step_(step),
          slots_(parse_slots(step.options.text("slots"), *model.family)),
          layers_(parse_layers(step.options.text("layers"), model.topology.layers.size())),
          both_(step.options.text("stream") == "both"),
          wanted_(step, parse_ridge(step.options.text("ridge"), "correct"), both_) {
        check_observable("correct", model, step, slots_);
    }

    Model run() {
        const Model before = model_;
        Progress progress("correct", layers_.size(), "layers");
        for (const size_t p : layers_) {
            for (const Tap tap : kInputTaps) correct(p, tap);
            wanted_.done(p);
            progress.advance(1);
        }
        progress.finish();
        report(before);
        return std::move(model_);
    }

private:
    // Those of a layer that are not the original's.
    std::vector<Slot> changed_slots(size_t p, Tap tap) const {
        std::vector<Slot> out;
        for (const Slot slot : slots_reading(model_, p, tap, slots_)) {
            if (is_unchanged(step_.original, model_, p, slot)) continue;
            if (std::holds_alternative<Plus>(model_.topology.at(p, slot)))
                fail(ErrorCode::unsupported, "correct",
                     "layer {} {}: it has a LoRA or a correction already - leave the slot out", p,
                     slot_name(slot));
            const SlotShape now = slot_shape(slot, model_.config, p);
            const bool had = step_.original.topology.has(p, slot);
            const SlotShape then = had ? slot_shape(slot, step_.original.config, p) : SlotShape{0, 0};
            if (then.in != now.in || then.out != now.out)
                fail(
                    ErrorCode::unsupported, "correct",
                    "layer {} {}: the matrix is {} by {}, the original's {} by {}: there is no difference to "
                    "correct - leave the layer or slot out, or compare with another --original",
                    p, slot_name(slot), now.out, now.in, then.out, then.in);
            out.push_back(slot);
        }
        return out;
    }

    int64_t rank_of(size_t p, Slot slot) const {
        const SlotShape shape = slot_shape(slot, model_.config, p);
        return std::min({step_.options.integer("rank"), shape.in, shape.out});
    }

    void correct(size_t p, Tap tap) {
        const std::vector<Slot> slots = changed_slots(p, tap);
        if (slots.empty()) return;
        Tensors found;
        if (!step_.dry_run())
            found = step_.work->results_of_all(
                {kCorrections, {{"step", step_.identity}, {"layer", p}, {"inputs", tap_name(tap)}}},
                [&] { return corrections(p, tap, slots); });
        if (!step_.dry_run()) wanted_.set_ridge(slots.front(), lazy::numbers(found.at("ridge")).front());
        for (const Slot slot : slots) install(p, slot, found);
    }

    static std::string part_name(Slot slot, const char* part) {
        return fmt::format("{}.{}", slot_name(slot), part);
    }

    Arrays corrections(size_t p, Tap tap, const std::vector<Slot>& slots) {
        Floats present, original;
        for (const Slot slot : slots) {
            const Floats now = matrix_of(model_, p, slot), then = matrix_of(step_.original, p, slot);
            present.insert(present.end(), now.begin(), now.end());
            original.insert(original.end(), then.begin(), then.end());
        }
        // A map that ends a module may have been solved anew: it is what its ridge draws to.
        const bool ends_module = both_ && output_map_after(tap) != nullptr;
        const WantedMap wanted =
            wanted_.at(model_, p, tap, slots, ends_module ? present : std::move(original));
        Arrays out = {{"ridge", {{1}, {static_cast<float>(wanted.ridge)}}}};
        size_t at = 0;
        for (const Slot slot : slots) {
            const auto [in, outputs] = slot_shape(slot, model_.config, p);
            const auto count = static_cast<size_t>(in * outputs);
            const auto rows = std::span(wanted.weights).subspan(at, count);
            Floats left(rows.begin(), rows.end());
            for (size_t i = 0; i < count; ++i) left[i] -= present[at + i];
            at += count;
            const double all = std::max(output_energy(wanted.gram, in, rows), 1e-30),
                         error = output_energy(wanted.gram, in, left);
            const int64_t rank = rank_of(p, slot);
            LowRankMap low = reduce_rank(wanted.gram, in, left, rank);
            const Floats made = product_of(low, in);
            for (size_t i = 0; i < count; ++i) left[i] -= made[i];
            out[part_name(slot, "figures")] = {
                {2},
                {static_cast<float>(error / all),
                 static_cast<float>(output_energy(wanted.gram, in, left) / all)}};
            out[part_name(slot, "u")] = {{rank, outputs}, std::move(low.u)};
            out[part_name(slot, "v")] = {{in, rank}, std::move(low.v)};
        }
        return out;
    }

    void install(size_t p, Slot slot, const Tensors& found) {
        const DType type =
            computed_type(step_.options.text("type"), model_, tensors_of(model_.topology.at(p, slot)));
        const SlotShape shape = slot_shape(slot, model_.config, p);
        const int64_t rank = rank_of(p, slot);
        if (step_.dry_run()) {
            add_lora(model_, p, slot,
                     {lazy::constant(type, {rank, shape.out}, 0), lazy::constant(type, {shape.in, rank}, 0)});
            ++corrected_;
            return;
        }
        add_lora(
            model_, p, slot,
            {as_type(found.at(part_name(slot, "u")), type), as_type(found.at(part_name(slot, "v")), type)});
        const auto figures = lazy::numbers(found.at(part_name(slot, "figures")));
        solved_.push_back({{"layer", p},
                           {"slot", slot_name(slot)},
                           {"rank", rank},
                           {"error_before", figures[0]},
                           {"error_after", figures[1]}});
        ++corrected_;
    }

    void report(const Model& before) {
        auto& lines = step_.report.lines;
        if (corrected_ == 0) {
            check_has_original(before, step_, "correct");
            lines.emplace_back("these matrices are the original's: nothing to correct");
        }
        double error = 0, left = 0;
        for (const json& entry : solved_) {
            error += entry["error_before"].get<double>() / static_cast<double>(solved_.size());
            left += entry["error_after"].get<double>() / static_cast<double>(solved_.size());
        }
        if (!solved_.empty())
            lines.push_back(
                fmt::format("{} matrices corrected; error of their outputs {:.3g} % -> {:.3g} % in the mean",
                            solved_.size(), 100 * error, 100 * left));
        json details;
        details["solved"] = solved_;
        step_.report.details = details.dump();
        if (corrected_ > 0) lines.push_back("adds " + added_text(before));
    }

    std::string added_text(const Model& before) const {
        size_t bytes = 0;
        int64_t numbers = 0;
        for (const auto& [name, tensor] : model_.tensors) {
            if (before.tensors.contains(name)) continue;
            bytes += tensor.bytes();
            numbers += tensor.elements();
        }
        return fmt::format("{} parameters, {:.2f} MiB", numbers, static_cast<double>(bytes) / (1 << 20));
    }

    Model model_;
    Step& step_;
    std::vector<Slot> slots_;
    std::vector<size_t> layers_;
    bool both_;
    WantedMaps wanted_;
    size_t corrected_ = 0;
    std::vector<json> solved_;
};

Model apply(const Model& model, Step& step) { return Correction(model, step).run(); }

constexpr const char* kDocumentation = R"(
Matrices that an earlier step (or, with `--original`, an earlier run) has changed get a low-rank term of their own: Q becomes
Q + U V, where U V is the matrix of rank `rank` for which the outputs err least, sum of |(W - Q) x' - U V x'|^2 over the calibration
text. In closed form: with S S^T = sum of x' x'^T, the truncated singular value decomposition of (W - Q) S, times S^-1 (QERA,
arXiv 2410.06040; EoRA, 2410.21271). Layer by layer, with the inputs x' of the model that is corrected so far. Made for quantized
weights, packed or folded, which stay as they are; shared heads and layers that run several times are corrected as well, each layer
by a term of its own.

`stream=both`: W is not the original's matrix but the one that does what the original does, on the inputs that the map has now
(`refold methods low_rank`, step 1): maps that end a module are corrected for the original's residual stream, so that they
make up for errors before them. That is needed after `quantize` with `resolve=auto`, whose output maps are not those of the
original. `stream=model`: the original's matrix.

After GPTQ, terms take back much of the outputs' error on the calibration text and may take back little on other text: a larger type for the same bytes may be the better choice (docs/quality.md).

Needs calibration text (`--calib FILE --calib-tokens N`); memory and time are those of `refit`. An interrupted run resumes after the
maps that it had solved.
)";

}  // namespace

extern const Method method;
const Method method = {
    "correct",
    "low-rank terms added to quantized weights, so that their outputs err least, in closed form",
    "QERA (arXiv 2410.06040); EoRA (2410.21271); both streams as in AA-SVD (2604.02119)",
    kDocumentation + 1,
    {
        slots_option("all", "which matrices"),
        layers_option(),
        {"rank", OptionSpec::Kind::integer, "16", "of every term", 1, 1 << 20},
        stream_option(),
        ridge_option(),
        type_option(),
    },
    apply,
    [](const Options&) { return true; },
    false,
    true,
};

}  // namespace refold::correct_method
