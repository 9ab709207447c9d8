#include "model/row_parts.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "model/materialize.h"
#include "model/quantized.h"

namespace refold {
namespace {

constexpr std::string_view kIds = ".rows";  // of the name of the tensor `ids`, after that of the table

// The listed rows, then all others.
std::vector<int32_t> completed(std::vector<int32_t> listed, int64_t rows) {
    std::vector<bool> seen(static_cast<size_t>(rows));
    for (const int32_t id : listed) seen[static_cast<size_t>(id)] = true;
    for (int64_t id = 0; id < rows; ++id)
        if (!seen[static_cast<size_t>(id)]) listed.push_back(static_cast<int32_t>(id));
    return listed;
}

std::vector<std::byte> gathered(const Tensor& table, const std::vector<int32_t>& order, int64_t first,
                                int64_t count) {
    const TensorBytes bytes(table);
    const size_t stride = row_bytes(table.type, table.row_elements());
    std::vector<std::byte> out(stride * static_cast<size_t>(count));
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
        const auto id = static_cast<size_t>(order[static_cast<size_t>(first) + r]);
        memcpy(out.data() + r * stride, bytes.bytes().data() + id * stride, stride);
    }
    return out;
}

std::vector<std::byte> joined(const Model& model, const RowParts& parts, DType type) {
    const std::vector<int32_t> ids = ids_in_order(model, parts);
    const int64_t width = model.tensor(parts.parts.front()).row_elements();
    const size_t stride = row_bytes(type, width);
    std::vector<std::byte> out(stride * ids.size());
    size_t at = 0;
    for (const std::string& part : parts.parts) {
        const TensorBytes stored(model.tensor(part));
        std::vector<std::byte> other;
        const bool has_type = model.tensor(part).type == type;
        if (!has_type) other = quantize(type, floats_of(model, part), width);
        const std::span<const std::byte> rows = has_type ? stored.bytes() : other;
        for (size_t from = 0; from < rows.size(); from += stride, ++at)
            memcpy(out.data() + static_cast<size_t>(ids[at]) * stride, rows.data() + from, stride);
    }
    return out;
}

}  // namespace

std::vector<int32_t> ids_in_order(const Model& model, const RowParts& parts) {
    int64_t rows = 0;
    for (const std::string& part : parts.parts) rows += model.tensor(part).rows();
    const std::vector<float> values = floats_of(model, parts.ids);
    std::vector<bool> seen(static_cast<size_t>(rows));
    std::vector<int32_t> listed;
    listed.reserve(static_cast<size_t>(rows));
    for (const float value : values) {
        // A row past 2^24 has no float of its own; no vocabulary is that large.
        const bool row = value >= 0 && value < static_cast<float>(rows) && value == std::floor(value);
        if (!row || seen[static_cast<size_t>(value)])
            fail(ErrorCode::input, "model", "{}: tensor '{}' lists {}, which is {}", model.label, parts.ids,
                 value, row ? "there already" : fmt::format("none of {} rows", rows));
        seen[static_cast<size_t>(value)] = true;
        listed.push_back(static_cast<int32_t>(value));
    }
    return completed(std::move(listed), rows);
}

std::vector<int32_t> places_of_rows(const Model& model, const RowParts& parts) {
    const std::vector<int32_t> ids = ids_in_order(model, parts);
    std::vector<int32_t> places(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) places[static_cast<size_t>(ids[i])] = static_cast<int32_t>(i);
    return places;
}

std::string table_of(const RowParts& parts) {
    return parts.ids.ends_with(kIds) ? parts.ids.substr(0, parts.ids.size() - kIds.size()) : parts.ids;
}

void check_row_parts(const Model& model) {
    for (const auto& [slot, expression] : model.topology.globals)
        if (const auto* parts = std::get_if<RowParts>(&expression)) ids_in_order(model, *parts);
}

std::optional<int64_t> rows_in_parts(const Model& model, Slot slot) {
    const auto found = model.topology.globals.find(slot);
    const auto* parts =
        found == model.topology.globals.end() ? nullptr : std::get_if<RowParts>(&found->second);
    if (parts == nullptr) return std::nullopt;
    int64_t rows = 0;
    for (const std::string& part : parts->parts) rows += model.tensor(part).rows();
    return rows;
}

std::optional<Model> with_whole_tables(const Model& model, std::optional<DType> type) {
    std::optional<Model> out;
    const auto shared = std::make_shared<const Model>(model);
    for (const auto& [slot, expression] : model.topology.globals) {
        const auto* parts = std::get_if<RowParts>(&expression);
        if (parts == nullptr) continue;
        if (!out) out = model;
        const int64_t width = model.tensor(parts->parts.front()).row_elements();
        std::optional<DType> used = type;
        for (const std::string& part : parts->parts) {
            const DType own = fitting_type(model.tensor(part).type, width);
            if (!type && (!used || row_bytes(own, width) > row_bytes(*used, width))) used = own;
        }
        const std::string name = parts->parts.front() + ".whole";  // the same for slots that share the table
        out->tensors[name] = {
            *used, {width, *rows_in_parts(model, slot)}, {}, [shared, parts = *parts, type = *used] {
                return joined(*shared, parts, type);
            }};
        out->topology.globals[slot] = Dense{name};
    }
    if (out) out->drop_unreferenced();
    return out;
}

Model with_row_parts(const Model& model, const std::string& name, const std::vector<int64_t>& counts,
                     std::function<std::vector<int32_t>()> order) {
    const Tensor table = model.tensor(name);
    std::vector<int64_t> all = counts;
    const int64_t listed = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    all.push_back(table.rows() - listed);
    const auto whole_order = [order = std::move(order), listed, rows = table.rows()] {
        std::vector<int32_t> ids = order();
        ids.resize(static_cast<size_t>(listed));
        return completed(std::move(ids), rows);
    };
    Model out = model;
    RowParts parts{{}, name + std::string(kIds)};
    int64_t first = 0;
    for (const int64_t count : all) {
        parts.parts.push_back(fmt::format("{}.part{}", name, parts.parts.size()));
        out.tensors[parts.parts.back()] = {table.type,
                                           {table.row_elements(), count},
                                           {},
                                           [table, whole_order, first, count, files = model.source] {
                                               auto rows = gathered(table, whole_order(), first, count);
                                               if (files) files->release(table.mapped);
                                               return rows;
                                           }};
        first += count;
    }
    out.tensors[parts.ids] = {DType::F32, {listed}, {}, [whole_order, listed] {
                                  const std::vector<int32_t> ids = whole_order();
                                  const std::vector<float> values(ids.begin(), ids.begin() + listed);
                                  return quantize(DType::F32, values, listed);
                              }};
    for (auto& [slot, expression] : out.topology.globals)
        if (expression == Expression(Dense{name})) expression = parts;
    out.drop_unreferenced();
    return out;
}

}  // namespace refold
