#include "engine/ggml/aligned_ranks.h"

#include <algorithm>

namespace refold {
namespace {

class Alignment {
public:
    explicit Alignment(Model model) : model_(std::move(model)) {}

    std::optional<Model> run() {
        for (Slots& slots : model_.topology.positions) align(slots);
        align(model_.topology.globals);
        if (!changed_) return std::nullopt;
        return std::move(model_);
    }

private:
    void align(Slots& slots) {
        for (auto& [slot, expression] : slots) {
            if (auto* low_rank = std::get_if<LowRank>(&expression)) align(*low_rank);
            if (auto* plus = std::get_if<Plus>(&expression)) {
                if (auto* base = std::get_if<LowRank>(&plus->base)) align(*base);
                align(plus->term);
            }
        }
    }

    void align(LowRank& e) {
        const int64_t rank = model_.tensor(e.u).shape[0];
        // A quantised U has whole blocks, which are a multiple of the unit.
        if (rank % kRankUnit == 0) return;
        const int64_t filled = (rank + kRankUnit - 1) / kRankUnit * kRankUnit;
        changed_ = true;
        e.u = with_columns(e.u, filled);
        if (!e.scale.empty()) e.scale = with_columns(e.scale, filled);
        e.v = with_rows(e.v, filled);
    }

    std::string with_columns(const std::string& name, int64_t columns) {
        const Tensor& tensor = model_.tensor(name);
        return filled(name + ".columns", {columns, tensor.rows()}, tensor);
    }
    std::string with_rows(const std::string& name, int64_t rows) {
        const Tensor& tensor = model_.tensor(name);
        return filled(name + ".rows", {tensor.row_elements(), rows}, tensor);
    }

    // All zero bytes are the number zero in every type.
    std::string filled(const std::string& name, std::vector<int64_t> shape, const Tensor& tensor) {
        const std::string key = "filled." + name;
        if (model_.tensors.contains(key)) return key;
        Tensor made{tensor.type, std::move(shape), {}, {}};
        made.produce = [tensor, size = made.bytes(), to = row_bytes(made.type, made.row_elements())] {
            const TensorBytes read(tensor);
            const size_t from = row_bytes(tensor.type, tensor.row_elements());
            std::vector<std::byte> bytes(size);
            for (size_t row = 0; row < static_cast<size_t>(tensor.rows()); ++row)
                std::copy_n(read.bytes().data() + row * from, from, bytes.data() + row * to);
            return bytes;
        };
        model_.tensors[key] = std::move(made);
        return key;
    }

    Model model_;
    bool changed_ = false;
};

}  // namespace

std::optional<Model> with_aligned_ranks(const Model& model) { return Alignment(model).run(); }

}  // namespace refold
