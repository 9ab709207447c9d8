#include "compress/rewrite/cut.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

// Calls visit(first, count) for every run of neighboring parts.
template <typename Visit>
void for_each_run(const std::vector<int64_t>& kept, Visit&& visit) {
    for (size_t i = 0, run = 0; i < kept.size(); i += run) {
        for (run = 1; i + run < kept.size() && kept[i + run] == kept[i] + static_cast<int64_t>(run);) ++run;
        visit(kept[i], static_cast<int64_t>(run));
    }
}

// The packed bytes of all kept runs of each of the tensor's `lines`. `bytes_of(n)`: bytes of n neighboring
// parts.
template <typename BytesOf>
std::vector<std::byte> copy_runs(const Tensor& tensor, size_t lines, const Cut& cut, BytesOf&& bytes_of) {
    const TensorBytes source(tensor);
    const size_t stride = source.bytes().size() / lines;
    std::vector<std::byte> out;
    out.reserve(bytes_of(static_cast<int64_t>(cut.kept.size())) * lines);
    for (size_t line = 0; line < lines; ++line) {
        for_each_run(cut.kept, [&](int64_t first, int64_t count) {
            const auto run = source.bytes().subspan(line * stride + bytes_of(first), bytes_of(count));
            out.insert(out.end(), run.begin(), run.end());
        });
    }
    return out;
}

std::vector<std::byte> convert_columns(const Tensor& tensor, const Cut& cut, DType type, int64_t columns) {
    const TensorBytes source(tensor);
    const size_t stride = row_bytes(tensor.type, tensor.row_elements());
    std::vector<float> values(static_cast<size_t>(columns * tensor.rows())),
        line(static_cast<size_t>(tensor.row_elements()));
    auto to = values.begin();
    for (int64_t row = 0; row < tensor.rows(); ++row) {
        dequantize(tensor.type, source.bytes().subspan(static_cast<size_t>(row) * stride, stride), line);
        for_each_run(cut.kept, [&](int64_t first, int64_t count) {
            to = std::copy_n(line.begin() + first * cut.width, count * cut.width, to);
        });
    }
    return quantize(type, values, columns);
}

}  // namespace

Tensor keep_parts(const Model& model, const Tensor& tensor, const Cut& cut, DType type) {
    const int64_t along = static_cast<int64_t>(cut.kept.size()) * cut.width;
    Tensor out{type, tensor.shape, {}, {}};
    (cut.columns ? out.shape.front() : out.shape.back()) = along;
    // Keeps the mapped file alive: `model` may be gone when the producer runs.
    out.produce = [tensor, cut, type, along, file = model.source] {
        if (type != tensor.type) return convert_columns(tensor, cut, type, along);
        if (cut.columns) {
            return copy_runs(tensor, static_cast<size_t>(tensor.rows()), cut,
                             [&](int64_t parts) { return row_bytes(type, parts * cut.width); });
        }
        const size_t row = row_bytes(type, tensor.row_elements());
        return copy_runs(tensor, 1, cut,
                         [&](int64_t parts) { return static_cast<size_t>(parts * cut.width) * row; });
    };
    return out;
}

bool fits_blocks(const Cut& cut, DType type) {
    if (!cut.columns) return true;
    const int64_t block = block_elements(type);
    bool fits = true;
    for_each_run(cut.kept, [&](int64_t first, int64_t count) {
        fits &= first * cut.width % block == 0 && count * cut.width % block == 0;
    });
    return fits;
}

DType requantized_type(int64_t columns) {
    return columns % block_elements(DType::Q8_0) == 0 ? DType::Q8_0 : DType::F16;
}

void report_requantized(const std::vector<Requantized>& requantized, const std::string& hint,
                        StepReport& report, nlohmann::json& details) {
    nlohmann::json& list = details["requantized"] = nlohmann::json::array();
    size_t before = 0, after = 0;
    for (const auto& r : requantized) {
        list.push_back({{"tensor", r.tensor},
                        {"from", name(r.from)},
                        {"to", name(r.to)},
                        {"bytes_before", r.bytes_before},
                        {"bytes_after", r.bytes_after}});
        report.lines.push_back(fmt::format(
            "{}: requantized {} -> {}, because the columns of its parts are not whole blocks of {}", r.tensor,
            name(r.from), name(r.to), block_elements(r.from)));
        before += r.bytes_before;
        after += r.bytes_after;
    }
    if (requantized.empty()) return;
    report.lines.push_back(fmt::format("requantized tensors: {} -> {}{}{}", format_bytes(before),
                                       format_bytes(after), hint.empty() ? "" : "; ", hint));
}

void set_columns(Model& model, Slot slot, const std::map<size_t, std::vector<Columns>>& columns) {
    std::set<std::string> taken;  // names used by layers that keep their tensor
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const auto& [other, expression] : model.topology.layers[p]) {
            if (other == slot && columns.contains(p)) continue;
            for (const auto& name : tensors_of(expression)) taken.insert(name);
        }
    }
    std::map<std::string, Tensor> added;
    std::vector<std::pair<const std::vector<Columns>*, std::string>> done;
    for (const auto& [p, parts] : columns) {
        const auto same =
            std::find_if(done.begin(), done.end(), [&](const auto& entry) { return *entry.first == parts; });
        std::string name = same != done.end() ? same->second : tensor_name(*model.family, slot, p);
        if (same == done.end()) {
            while (taken.contains(name)) name += ".own";
            std::vector<std::pair<Tensor, Columns>> sources;
            for (const auto& part : parts) sources.emplace_back(model.tensor(part.tensor), part);
            Tensor tensor{DType::F32, sources.front().first.shape, {}, {}};
            tensor.shape.front() = 0;
            for (const auto& part : parts) tensor.shape.front() += part.count;
            tensor.produce = [sources, file = model.source] {
                std::vector<std::byte> out;
                for (int64_t row = 0; row < sources.front().first.rows(); ++row) {
                    for (const auto& [source, part] : sources) {
                        const TensorBytes bytes(source);
                        const auto first = static_cast<size_t>(row * source.row_elements() + part.first);
                        const auto view = bytes.bytes().subspan(
                            first * sizeof(float), static_cast<size_t>(part.count) * sizeof(float));
                        out.insert(out.end(), view.begin(), view.end());
                    }
                }
                return out;
            };
            added[name] = std::move(tensor);
            done.emplace_back(&parts, name);
        }
        model.topology.layers[p][slot] = Dense{name};
    }
    for (auto& [name, tensor] : added) model.tensors[name] = std::move(tensor);
}

}  // namespace refold
