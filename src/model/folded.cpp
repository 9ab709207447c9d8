#include "model/folded.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/json_text.h"
#include "model/quantized.h"

namespace refold {

using nlohmann::json;

std::string folded_to_json(const std::map<std::string, Tensor>& tensors) {
    json out = json::object();
    for (const auto& [name, tensor] : tensors)
        if (tensor.fold() > 1) out[name] = tensor.row_elements();
    return out.empty() ? "" : out.dump();
}

void unfold_shapes(const std::string& text, std::map<std::string, Tensor>& tensors) {
    const auto given = try_parse_json<nlohmann::ordered_json>(text, nullptr, kLargeJson);
    if (!given.is_object()) fail(ErrorCode::input, "model", "key 'refold.folded' is no JSON object");
    for (const auto& [name, elements] : given.items()) {
        const auto found = tensors.find(name);
        if (found == tensors.end())
            fail(ErrorCode::input, "model", "key 'refold.folded' names tensor '{}', which is not in the file",
                 name);
        Tensor& tensor = found->second;
        const int64_t row = elements.is_number_integer() ? elements.get<int64_t>() : 0,
                      stored = tensor.shape.size() == 2 ? tensor.shape[0] : 0;
        if (row <= 0 || stored < row || stored % row != 0 || stored / row != fold(tensor.type, row))
            fail(ErrorCode::input, "model",
                 "key 'refold.folded': rows of {} elements are not what tensor '{}' of shape [{}] and type "
                 "{} folds",
                 elements.dump(), name, fmt::join(tensor.shape, ", "), refold::name(tensor.type));
        tensor.shape = {row, tensor.shape[1] * (stored / row)};
    }
}

std::vector<int64_t> folded_shape(const Tensor& tensor) {
    std::vector<int64_t> shape = tensor.shape;
    if (const int64_t rows = tensor.fold(); rows > 1) shape = {shape[0] * rows, shape[1] / rows};
    return shape;
}

std::optional<Model> without_folds(const Model& model, std::optional<DType> type) {
    std::optional<Model> out;
    for (const auto& [name, tensor] : model.tensors) {
        if (tensor.fold() == 1) continue;
        if (!out) out = model;
        out->tensors[name] =
            nearest_tensor(model, name, type.value_or(fitting_type(tensor.type, tensor.row_elements())));
    }
    return out;
}

}  // namespace refold
