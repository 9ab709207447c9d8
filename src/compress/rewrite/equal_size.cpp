#include "compress/rewrite/equal_size.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "compress/method/selection.h"
#include "compress/rewrite/units.h"
#include "core/text.h"
#include "model/accounting.h"

namespace refold {

uint64_t parameters_of_heads(const Model& model, double ratio) {
    uint64_t unit = 0;
    for (const Slot slot : kQkvo)
        unit += static_cast<uint64_t>(heads_per_unit(slot, model.config) * model.config.head_dim *
                                      model.config.n_embd);
    return part_of(ratio, count_head_units(model)) * unit;
}

void report_equal_size(const Model& before, const Model& after, double ratio, StepReport& report,
                       nlohmann::json& details) {
    const uint64_t all = account(before).model.parameters, reached = account(after).model.parameters,
                   aim = all - parameters_of_heads(before, ratio);
    const auto difference = static_cast<int64_t>(reached) - static_cast<int64_t>(aim);
    details["equal_size"] = {
        {"ratio", ratio}, {"parameters", aim}, {"reached", reached}, {"difference", difference}};
    const std::string compared =
        fmt::format("sharing {:g} % of the heads ({} parameters)", 100 * ratio, format_count(aim));
    if (difference == 0) {
        report.lines.push_back("as many parameters as after " + compared);
        return;
    }
    report.lines.push_back(fmt::format("{} parameters {} than after {}: {:+.2f} % of the model",
                                       format_count(static_cast<uint64_t>(std::abs(difference))),
                                       difference > 0 ? "more" : "fewer", compared,
                                       100 * static_cast<double>(difference) / static_cast<double>(all)));
}

}  // namespace refold
