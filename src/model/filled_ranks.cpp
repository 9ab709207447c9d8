#include "model/filled_ranks.h"

#include <algorithm>

namespace refold {
namespace {

class Filling {
public:
    Filling(Model model, int64_t unit, const std::function<bool(const LowRank&)>& wanted)
        : model_(std::move(model)), unit_(unit), wanted_(wanted) {}

    std::optional<Model> run() {
        for (Slots& slots : model_.topology.layers) fill(slots);
        fill(model_.topology.globals);
        if (!changed_) return std::nullopt;
        return std::move(model_);
    }

private:
    void fill(Slots& slots) {
        for (auto& [slot, expression] : slots) {
            if (auto* low_rank = std::get_if<LowRank>(&expression)) fill(*low_rank);
            if (auto* plus = std::get_if<Plus>(&expression)) {
                if (auto* base = std::get_if<LowRank>(&plus->base)) fill(*base);
                fill(plus->term);
            }
        }
    }

    void fill(LowRank& e) {
        const int64_t rank = model_.tensor(e.u).shape[0];
        if (rank % unit_ == 0 || (wanted_ && !wanted_(e))) return;
        const int64_t filled = (rank + unit_ - 1) / unit_ * unit_;
        changed_ = true;
        e.u = columns(e.u, filled);
        if (!e.scale.empty()) e.scale = columns(e.scale, filled);
        e.v = rows(e.v, filled);
    }

    std::string columns(const std::string& name, int64_t count) {
        const Tensor& tensor = model_.tensor(name);
        return filled(name + ".columns", {count, tensor.rows()}, tensor);
    }
    std::string rows(const std::string& name, int64_t count) {
        const Tensor& tensor = model_.tensor(name);
        return filled(name + ".rows", {tensor.row_elements(), count}, tensor);
    }

    // All zero bytes are the number zero in every type.
    std::string filled(const std::string& key, std::vector<int64_t> shape, const Tensor& tensor) {
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
    int64_t unit_;
    const std::function<bool(const LowRank&)>& wanted_;
    bool changed_ = false;
};

}  // namespace

std::optional<Model> with_filled_ranks(const Model& model, int64_t unit,
                                       const std::function<bool(const LowRank&)>& wanted) {
    return Filling(model, unit, wanted).run();
}

}  // namespace refold
