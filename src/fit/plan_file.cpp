#include "fit/plan_file.h"

#include <cctype>
#include <map>

#include "compress/compress.h"
#include "compress/method/lazy.h"
#include "compress/refit/output_solver.h"
#include "compress/refit/refit_rows.h"
#include "core/error.h"
#include "core/text.h"
#include "model/accounting.h"
#include "model/sizes.h"
#include "model/stock.h"

namespace refold {
namespace {

// For the recipe, the provenance and the list of folded matrices, which grow with the number of matrices.
constexpr uint64_t kBytesPerMatrix = 104, kBytesOfProvenance = 8192;

// Of a GGUF file's metadata and descriptions of tensors, a little too many.
uint64_t metadata_bytes(const Model& model) {
    constexpr uint64_t kEntry = 32, kTensor = 128;  // with padding of its data
    uint64_t bytes = kTensor * model.tensors.size();
    for (const auto& [key, value] : model.metadata.entries()) {
        bytes += key.size() + kEntry;
        if (const auto* text = std::get_if<std::string>(&value.value)) bytes += text->size();
        const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
        if (array == nullptr) continue;
        bytes += (*array)->packed.size();
        for (const std::string& text : (*array)->strings) bytes += text.size() + sizeof(uint64_t);
    }
    if (const Topology implied = model.implied(); model.topology != implied)
        bytes += topology_to_json(model.topology, implied).size();
    return bytes + sizes_to_json(model.config).size();
}

// "0-3,7"
std::string ranges(const std::vector<size_t>& layers) {
    std::string out;
    for (size_t i = 0; i < layers.size();) {
        size_t last = i;
        while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
        out += out.empty() ? "" : ",";
        out += last == i ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[last]);
        i = last + 1;
    }
    return out;
}

std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

// Asks with a model that has all biases that solving its output maps may add.
bool stock_takes_biases(Model model) {
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const OutputMap& map : kOutputMaps) {
            if (model.topology.has(p, map.matrix) && has_bias(model, p, map))
                install_vector(model, p, map.bias, lazy::constant(DType::F32, {model.config.n_embd}, 0));
        }
    }
    try {
        for_stock(model);
        return true;
    } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        return false;
    }
}

}  // namespace

std::string types_option(const std::vector<FitTensor>& tensors, const std::vector<size_t>& chosen) {
    std::map<std::pair<Slot, DType>, std::vector<size_t>> layers;
    std::map<std::pair<Slot, std::string>, std::vector<std::pair<DType, int64_t>>>
        tables;  // rows that have a type
    for (size_t t = 0; t < chosen.size(); ++t) {
        const FitTensor& tensor = tensors[t];
        const DType type = tensor.candidates[chosen[t]].type;
        if (!tensor.table) {
            layers[{tensor.slot, type}].push_back(tensor.layer);
        } else if (auto& rows = tables[{tensor.slot, tensor.name}];
                   !rows.empty() && rows.back().first == type) {
            rows.back().second += tensor.rows;
        } else {
            rows.emplace_back(type, tensor.rows);
        }
    }
    std::vector<std::string> words;
    for (const auto& [key, at] : layers)
        words.push_back(fmt::format("{}@{}={}", slot_name(key.first), ranges(at), lower(name(key.second))));
    for (const auto& [table, rows] : tables) {
        std::vector<std::string> types;
        for (const auto& [type, count] : rows)
            types.push_back(fmt::format("{}:{}", lower(name(type)), count));
        types.back().resize(types.back().find(':'));  // of all other rows
        words.push_back(fmt::format("{}={}", slot_name(table.first), fmt::join(types, ",")));
    }
    return fmt::format("{}", fmt::join(words, " "));
}

Recipe quantize_recipe(const Model& model, const std::string& types, RowLayout layout, bool resolve) {
    std::vector<std::string> settings = {"type=keep", "types=" + types};
    if (layout == RowLayout::whole_blocks && !stock_takes_biases(model)) settings.emplace_back("bias=no");
    if (!resolve) settings.emplace_back("resolve=no");
    return recipe_from_method("quantize", settings);
}

uint64_t file_bytes(const Model& made, size_t matrices) {
    return account(made).model.bytes + metadata_bytes(made) + kBytesOfProvenance + kBytesPerMatrix * matrices;
}

uint64_t file_bytes(const Model& model, const Recipe& recipe, size_t matrices) {
    return file_bytes(plan(model, recipe).model, matrices);
}

void check_sizes(const Model& model, RowLayout layout, std::span<const uint64_t> sizes) {
    const auto tensors = fit_tensors(model, layout);
    if (tensors.empty())
        fail(ErrorCode::unsupported, "fit", "{}: there is no matrix whose type could be chosen", model.label);
    const std::vector<size_t> small(tensors.size(), 0);
    const uint64_t smallest =
        file_bytes(model, quantize_recipe(model, types_option(tensors, small), layout), tensors.size());
    std::vector<std::string> below;
    for (const uint64_t size : sizes)
        if (size < smallest) below.push_back(format_bytes(size));
    if (!below.empty())
        fail(ErrorCode::usage, "fit", "{}: no choice of types makes {}; the smallest file has {}",
             model.label, join(below, ", "), format_bytes(smallest));
}

}  // namespace refold
