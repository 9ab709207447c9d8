#include "engine/ggml/adapters.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace refold {
namespace {

bool is_power_of_two(float x) {
    int exponent = 0;
    return std::frexp(x, &exponent) == 0.5F;
}

// BF16 becomes F16, which has more digits: for the few rows of one adapter its products are many times
// faster, and their inputs stay F32. Numbers that F16 does not reach are kept in F32.
DType kept_type(DType type, const std::vector<float>& values) {
    constexpr float kMostF16 = 65504;
    if (type != DType::BF16) return type;
    return std::ranges::all_of(values, [](float x) { return std::abs(x) <= kMostF16; }) ? DType::F16
                                                                                        : DType::F32;
}

// The scale goes into A. Unless that is exact, A is kept in F32.
RowTerms::Factors scaled(const Adapter::Term& term) {
    RowTerms::Factors factors{.rank = term.rank,
                              .a_type = is_power_of_two(term.scale) ? term.type : DType::F32,
                              .b_type = term.type,
                              .a = term.a,
                              .b = term.b};
    for (float& x : factors.a) x *= term.scale;
    factors.a_type = kept_type(factors.a_type, factors.a);
    factors.b_type = kept_type(factors.b_type, factors.b);
    return factors;
}

}  // namespace

void Adapters::check(const Adapter& adapter, const Adapter::Term& term) const {
    const auto refuse = [&](ErrorCode code, const std::string& what) {
        fail(code, "engine", "{}: {} of layer {} {}", adapter.label, slot_name(term.slot), term.layer, what);
    };
    const size_t block = topology_.layers.size();
    const bool whole = term.layer == kWholeModel;
    if (!whole && term.layer >= block * static_cast<size_t>(loops_))
        refuse(ErrorCode::input, "is in no layer of the model");
    const size_t layer = whole ? kWholeModel : term.layer % block;
    if (!(whole ? topology_.globals : topology_.layers[layer]).contains(term.slot))
        refuse(ErrorCode::input, "is not in the model");
    const SlotShape shape = slot_shape(term.slot, config_, layer);
    const auto size = [&](int64_t width) { return static_cast<size_t>(width * term.rank); };
    if (term.rank < 1 || term.a.size() != size(shape.in) || term.b.size() != size(shape.out))
        refuse(ErrorCode::input,
               fmt::format("has {} x {} numbers of rank {}, expected {} x {}", term.b.size(), term.a.size(),
                           term.rank, size(shape.out), size(shape.in)));
    // The prefix's keys and values are made once, with the weights alone.
    if (config_.n_prefix > 0 && (term.slot == Slot::attn_k || term.slot == Slot::attn_v))
        refuse(ErrorCode::unsupported, "makes a prefix's keys and values, which adapters do not change");
}

void Adapters::put(size_t layer, const Adapter::Term& term, size_t first, int32_t count) {
    const RowTerms::Factors factors = scaled(term);
    const size_t end = first + static_cast<size_t>(count);
    if (terms_.on_device != nullptr) {
        for (size_t set = first; set < end; ++set) terms_.on_device->put(layer, term.slot, set, factors);
        return;
    }
    const RowTerms::Term panels = RowTerms::term(factors, f32_);
    for (size_t set = first; set < end; ++set) terms_.on_cpu->put(layer, term.slot, set, panels);
}

int32_t Adapters::add(const Adapter& adapter) {
    for (const Adapter::Term& term : adapter.terms) check(adapter, term);
    const auto free = std::ranges::find(used_, false);
    const auto number = static_cast<int32_t>(free - used_.begin());
    if (free == used_.end()) used_.push_back(false);
    used_[static_cast<size_t>(number)] = true;
    const size_t block = topology_.layers.size(),
                 first = static_cast<size_t>(number) * static_cast<size_t>(loops_);
    for (const Adapter::Term& term : adapter.terms) {
        if (term.layer == kWholeModel)
            put(kWholeModel, term, first, loops_);
        else
            put(term.layer % block, term, first + term.layer / block, 1);
    }
    return number;
}

void Adapters::remove(int32_t adapter) {
    const auto number = static_cast<size_t>(adapter);
    if (adapter < 0 || number >= used_.size() || !used_[number])
        fail(ErrorCode::internal, "engine", "there is no adapter {}", adapter);
    for (const auto& [sequence, own] : of_)
        if (own == adapter)
            fail(ErrorCode::internal, "engine", "sequence {} has adapter {}", sequence, adapter);
    used_[number] = false;
    for (int32_t loop = 0; loop < loops_; ++loop) {
        const size_t set = number * static_cast<size_t>(loops_) + static_cast<size_t>(loop);
        terms_.on_device != nullptr ? terms_.on_device->erase(set) : terms_.on_cpu->erase(set);
    }
}

void Adapters::use(int32_t sequence, int32_t adapter) {
    const auto number = static_cast<size_t>(adapter);
    if (adapter < 0) {
        of_.erase(sequence);
        return;
    }
    if (number >= used_.size() || !used_[number])
        fail(ErrorCode::internal, "engine", "there is no adapter {}", adapter);
    of_[sequence] = adapter;
}

}  // namespace refold
