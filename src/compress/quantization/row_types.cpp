#include "compress/quantization/row_types.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/error.h"
#include "model/row_parts.h"

namespace refold {

std::vector<double> expected_use(std::span<const int64_t> occurrences, int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    std::vector<double> out(n);
    for (size_t i = 0; i < std::min(n, occurrences.size()); ++i) out[i] = static_cast<double>(occurrences[i]);
    const double tokens = std::accumulate(out.begin(), out.end(), 0.0);
    const auto once = static_cast<double>(std::ranges::count(out, 1.0)),
               never = static_cast<double>(std::ranges::count(out, 0.0));
    // Where all occur once, half of the text is as good a guess as any.
    const double unseen = never > 0 && tokens > 0 ? std::min(std::max(once, 1.0) / tokens, 0.5) : 0;
    for (double& use : out) {
        if (tokens == 0)
            use = 1 / static_cast<double>(n);
        else
            use = use > 0 ? use / tokens * (1 - unseen) : unseen / never;
    }
    return out;
}

std::vector<int32_t> rows_by_use(std::span<const int64_t> occurrences, int64_t rows) {
    std::vector<int32_t> out(static_cast<size_t>(rows));
    std::iota(out.begin(), out.end(), 0);
    const auto count = [&](int32_t row) {
        const auto i = static_cast<size_t>(row);
        return i < occurrences.size() ? occurrences[i] : 0;
    };
    std::ranges::stable_sort(out, std::greater(), count);
    return out;
}

Model with_rows_cut(const Model& model, const WantedTypes& wanted, const Calibration* calibration) {
    const std::vector<TypeException> exceptions = parse_exceptions(model, wanted.exceptions);
    Model out = model;
    std::set<std::string> seen;  // the slot that reads a tensor first decides
    for (const auto& [slot, expression] : model.topology.globals) {
        if (!seen.insert(tensors_of(expression).front()).second) continue;
        const TypeException* found = exception_for(exceptions, slot, kWholeModel);
        if (found == nullptr || found->rows.empty()) continue;
        const auto* table = std::get_if<Dense>(&expression);
        if (table == nullptr)
            fail(ErrorCode::usage, "quantize", "types: {} is not one tensor, so its rows have one type",
                 slot_name(slot));
        const int64_t rows = model.tensor(table->tensor).rows(),
                      listed = std::accumulate(found->rows.begin(), found->rows.end(), int64_t{0});
        if (listed >= rows)
            fail(ErrorCode::usage, "quantize", "types: {} rows of {} have a type of their own, of {} in all",
                 listed, slot_name(slot), rows);
        const std::vector<int64_t> occurrences =
            calibration != nullptr ? calibration->occurrences : std::vector<int64_t>();
        out = with_row_parts(out, table->tensor, found->rows,
                             [occurrences, rows] { return rows_by_use(occurrences, rows); });
    }
    return out;
}

}  // namespace refold
