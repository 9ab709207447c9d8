#include "compress/factorization/wanted_maps.h"

#include <algorithm>

#include "core/error.h"
#include "linalg/blas.h"

namespace refold {

static WantedMap wanted(std::vector<float> weights, const LeastSquares& all, double ridge) {
    const auto gram = all.gram();
    return {std::move(weights), {gram.begin(), gram.end()}, all.inputs(), ridge};
}

OptionSpec stream_option() {
    return {.name = "stream",
            .kind = OptionSpec::Kind::choice,
            .fallback = "both",
            .help =
                "what maps are solved for: the original's outputs, on the inputs that they have in the "
                "compressed model; or their own outputs on these inputs",
            .choices = {"both", "model"}};
}

WantedMaps::WantedMaps(const Step& step, std::optional<double> ridge, bool both)
    : solver_(step, ridge, both ? std::vector{Tap::attn_input, Tap::ffn_input} : std::vector<Tap>()),
      both_(both) {}

WantedMap WantedMaps::at(const Model& model, size_t layer, Tap tap, const std::vector<Slot>& slots,
                         std::vector<float> weights) {
    const OutputMap* module = output_map_after(tap);
    if (both_ && module != nullptr) return of_module(model, layer, *module, std::move(weights));
    const int64_t in = slot_shape(slots.front(), model.config, layer).in,
                  out = both_ ? static_cast<int64_t>(weights.size()) / in : 0;
    OutputSolver::Equations equations{{in, out}, {in, out}, std::move(weights)};
    std::vector<float> y;
    solver_.visit(
        model, layer, {tap},
        [&](const AlignedStreams::Rows& seen) {
            y.resize(static_cast<size_t>(seen.tokens * out));
            if (both_)
                blas::multiply(blas::Op::transposed, blas::Op::plain, {out, seen.tokens, in},
                               equations.prior.data(), seen.original.tapped(tap).data(), y.data());
            (seen.held_out ? equations.held_out : equations.fit)
                .add(seen.tokens, seen.modified.tapped(tap).data(), y.data());
        },
        both_ ? AlignedStreams::Extent::taps : AlignedStreams::Extent::model_taps);
    equations.fit.sum_over_processes();
    equations.held_out.sum_over_processes();
    if (both_) {
        OutputSolver::Solution solved = solver_.solve(slots.front(), equations);
        return wanted(std::move(solved.map.weights), solved.all, solved.map.ridge);
    }
    equations.fit.add(equations.held_out);
    return wanted(std::move(equations.prior), equations.fit, 0);
}

WantedMap WantedMaps::of_module(const Model& model, size_t layer, const OutputMap& module,
                                std::vector<float> weights) {
    const SlotShape shape = slot_shape(module.matrix, model.config, layer);
    FreeMap map;
    map.inputs = shape.in;
    map.outputs = shape.out;
    map.values = [&] { return FreeMap::Values{weights, {}, {}}; };
    OutputSolver::Solution solved = solver_.solve(model, layer, module, map, false);
    return wanted(std::move(solved.map.weights), solved.all, solved.map.ridge);
}

std::vector<Slot> slots_reading(const Model& model, size_t layer, Tap tap, const std::vector<Slot>& slots) {
    std::vector<Slot> out;
    for (const Slot slot : slots) {
        if (model.topology.has(layer, slot) && input_tap(slot) == tap) out.push_back(slot);
    }
    return out;
}

void check_observable(const char* method, const Model& model, const Step& step,
                      const std::vector<Slot>& slots) {
    for (const Slot slot : slots) {
        const auto tap = input_tap(slot);
        if (!tap || std::find(kInputTaps.begin(), kInputTaps.end(), *tap) == kInputTaps.end())
            fail(ErrorCode::usage, method, "slots: the inputs of {} cannot be observed", slot_name(slot));
    }
    if (model.topology.layers.size() != step.original.topology.layers.size())
        fail(ErrorCode::unsupported, method, "the number of layers is not the original's");
}

}  // namespace refold
