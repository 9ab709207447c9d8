#include "model/quantized.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/parallel.h"
#include "core/text.h"
#include "io/finite.h"
#include "model/filled_ranks.h"

namespace refold {
namespace {

// From small to large: a tensor gets the first type from the wanted one on that fits.
constexpr std::array kTypes = {DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q4_0, DType::Q4_1,
                               DType::Q5_K, DType::Q5_0, DType::Q5_1, DType::Q6_K, DType::Q8_0,
                               DType::F16,  DType::BF16, DType::F32};
// Types with levels or patterns from a table. No other type falls back to them.
constexpr std::array kTableTypes = {DType::IQ1_S,  DType::IQ1_M, DType::IQ2_XXS, DType::IQ2_XS,
                                    DType::IQ2_S,  DType::IQ3_S, DType::IQ3_XXS, DType::IQ4_XS,
                                    DType::IQ4_NL, DType::MXFP4};

bool is_small(DType type) { return !is_float(type) && type != DType::Q8_0 && type != DType::Q6_K; }

}  // namespace

std::map<std::string, QuantizedUse> quantized_uses(const Model& model) {
    std::map<std::string, QuantizedUse> uses;
    const auto add = [&](Slot slot, const Expression& expression) {
        for (const auto& name : tensors_of(expression)) {
            if (is_small_factor(expression, name)) continue;
            QuantizedUse& use = uses[name];
            use.matrix |= properties(slot).quantized != QuantizedAs::unchanged;
            use.embedding |= properties(slot).quantized == QuantizedAs::embedding;
            use.unit = std::gcd(use.unit, model.tensor(name).row_elements());
            // Rows of experts are not folded.
            const bool whole =
                (base_of(expression) == Expression(Dense{name}) && !consists_of_experts(slot)) ||
                std::holds_alternative<RowParts>(expression);
            use.whole_rows = std::gcd(use.whole_rows, whole ? model.tensor(name).rows() : 1);
        }
        const Expression base = base_of(expression);
        const auto* heads = std::get_if<Heads>(&base);
        if (heads == nullptr || !heads_are_columns(slot)) return;
        for (const auto& run : heads->runs) {
            QuantizedUse& use = uses[run.tensor];
            use.unit = std::gcd(use.unit, std::gcd(run.first, run.count) * model.config.head_dim);
        }
    };
    for (const auto& slots : model.topology.layers) {
        for (const auto& [slot, expression] : slots) add(slot, expression);
    }
    for (const auto& [slot, expression] : model.topology.globals) add(slot, expression);
    return uses;
}

bool fits(DType type, const QuantizedUse& use, RowLayout layout) {
    return use.unit % block_elements(type) == 0 ||
           (layout == RowLayout::or_folded && use.whole_rows % fold(type, use.unit) == 0);
}

DType fitting_type(DType wanted, int64_t unit) {
    if (std::find(kTableTypes.begin(), kTableTypes.end(), wanted) != kTableTypes.end()) {
        if (unit % block_elements(wanted) == 0) return wanted;
        return unit % block_elements(DType::IQ4_NL) == 0 ? DType::IQ4_NL : DType::F16;
    }
    auto type = std::find(kTypes.begin(), kTypes.end(), wanted);
    while (unit % block_elements(*type) != 0) ++type;
    return *type;
}

DType default_embedding_type(DType type) { return is_small(type) ? DType::Q6_K : type; }

Model with_whole_ranks(const Model& model, DType type) {
    // A rank that is not whole blocks would leave U in a larger type: zeros are often cheaper.
    const auto is_smaller = [&](const LowRank& e) {
        const int64_t rank = model.tensor(e.u).row_elements(), block = block_elements(type),
                      filled = (rank + block - 1) / block * block, width = model.tensor(e.v).row_elements();
        const size_t row_of_v = row_bytes(fitting_type(type, width), width);
        const auto bytes = [&](int64_t r) {
            return row_bytes(fitting_type(type, r), r) * static_cast<size_t>(model.tensor(e.u).rows()) +
                   row_of_v * static_cast<size_t>(r);
        };
        return bytes(filled) < bytes(rank);
    };
    Model out = with_filled_ranks(model, block_elements(type), is_smaller).value_or(model);
    out.drop_unreferenced();
    return out;
}

namespace {

// Works on some rows at a time, so that the floats of a large table are never all in memory.
std::vector<std::byte> requantize(const Tensor& source, DType type, const NearestOptions& options) {
    const int threads = options.threads > 0 ? options.threads : default_threads();
    constexpr int64_t kPieceElements = int64_t{1} << 20;
    const int64_t width = source.row_elements(), rows = source.rows(),
                  together = std::lcm(source.fold(), fold(type, width)),
                  piece = std::max<int64_t>(1, kPieceElements / width / together) * together;
    const size_t from = row_bytes(source.type, width * together), to = row_bytes(type, width * together);
    const auto offset = [&](int64_t row, size_t bytes) {
        return static_cast<size_t>(row / together) * bytes;
    };
    const TensorBytes bytes(source);
    std::vector<std::byte> out(offset(rows, to));
    parallel_for((rows + piece - 1) / piece, threads, [&](int64_t i) {
        const int64_t first = i * piece, count = std::min(piece, rows - first);
        std::vector<float> values(static_cast<size_t>(count * width));
        dequantize(source.type, bytes.bytes().subspan(offset(first, from), offset(count, from)), values);
        const auto packed =
            in_rows_from(first, [&] { return quantize(type, values, width, options.importance); });
        memcpy(out.data() + offset(first, to), packed.data(), packed.size());
    });
    return out;
}

}  // namespace

DType quantization_type(const std::string& given) {
    std::string upper = given;
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    std::vector<std::string> known;
    const auto is_named = [&](DType type) {
        known.push_back(name(type));
        return upper == known.back();
    };
    if (const auto found = std::find_if(kTypes.begin(), kTypes.end(), is_named); found != kTypes.end())
        return *found;
    if (const auto found = std::find_if(kTableTypes.begin(), kTableTypes.end(), is_named);
        found != kTableTypes.end())
        return *found;
    fail(ErrorCode::usage, "quantize", "unknown type '{}'; {}", given, suggestion(upper, known));
}

Tensor nearest_tensor(const Model& model, const std::string& tensor, DType type,
                      const NearestOptions& options) {
    const Tensor& source = model.tensor(tensor);
    return {type, source.shape, {}, [source, type, options, files = model.source] {
                auto bytes = requantize(source, type, options);
                if (files) files->release(source.mapped);
                return bytes;
            }};
}

std::string TypeFallback::text() const { return fmt::format("{}: {}", tensor, name(type)); }

Quantized quantize_model(const Model& model, const QuantizeOptions& options) {
    const DType embedding_type = options.embedding_type.value_or(default_embedding_type(options.type));
    const Model whole = with_whole_ranks(model, options.type);
    Quantized out{whole, {}};
    for (const auto& [tensor_name, use] : quantized_uses(whole)) {
        if (!use.matrix) continue;
        const Tensor& source = whole.tensor(tensor_name);
        const DType wanted = use.embedding ? embedding_type : options.type,
                    type = fitting_type(wanted, use.unit);
        if (type != wanted) out.fallbacks.push_back({tensor_name, wanted, type, use.unit});
        if (type == source.type) continue;
        out.model.tensors.at(tensor_name) = nearest_tensor(whole, tensor_name, type, {options.threads, {}});
    }
    return out;
}

}  // namespace refold
