// Checks of which weights a shared model's heads have.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compress/methods/direct_share.h"
#include "core/error.h"
#include "model/accounting.h"
#include "model/small_model.h"

namespace refold {

inline std::vector<std::byte> bytes_of(const Model& model, const std::string& name) {
    const TensorBytes bytes(model.tensor(name));
    return {bytes.bytes().begin(), bytes.bytes().end()};
}

// The weights of one unit in a slot, as floats.
inline std::vector<float> unit_weights(const Model& model, direct_share::Unit unit, Slot slot) {
    const SlotShape shape = slot_shape(slot, model.config);
    const bool queries = slot == Slot::attn_q || slot == Slot::attn_o;
    const int64_t width = model.config.head_dim * (queries ? model.config.q_per_kv() : 1);
    const std::vector<float> all = materialise(model, model.topology.at(unit.position, slot), slot);
    std::vector<float> out;
    for (int64_t r = 0; r < shape.out; ++r) {
        for (int64_t c = 0; c < shape.in; ++c) {
            const int64_t along = heads_are_columns(slot) ? c : r;
            if (along / width == unit.index) out.push_back(all[static_cast<size_t>(r * shape.in + c)]);
        }
    }
    return out;
}

// Every unit of `shared` has in `slots` the weights that `source` (or itself) has in `original`, and all
// other weights are the original's.
inline void expect_units(const Model& shared, const Model& original,
                         const std::map<direct_share::Unit, direct_share::Unit>& source,
                         const std::vector<Slot>& slots) {
    for (size_t p = 0; p < original.topology.positions.size(); ++p) {
        for (const auto& [slot, expression] : original.topology.positions[p]) {
            if (std::find(slots.begin(), slots.end(), slot) == slots.end()) {
                EXPECT_EQ(materialise(shared, shared.topology.at(p, slot), slot),
                          materialise(original, expression, slot))
                    << "position " << p << " " << slot_name(slot);
                continue;
            }
            for (int64_t u = 0; u < original.config.n_head_kv; ++u) {
                const direct_share::Unit unit{p, u};
                const direct_share::Unit from = source.contains(unit) ? source.at(unit) : unit;
                EXPECT_EQ(unit_weights(shared, unit, slot), unit_weights(original, from, slot))
                    << "position " << p << " unit " << u << " " << slot_name(slot);
            }
        }
    }
}

inline const std::vector<Slot> kQk = {Slot::attn_q, Slot::attn_k};
inline const std::vector<Slot> kQkv = {Slot::attn_q, Slot::attn_k, Slot::attn_v};
inline const std::vector<Slot> kQkvo = {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o};

// The Error that `body` throws; fails the test when it throws none.
template <typename Body>
Error error_of(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error";
    return Error(ErrorCode::internal, "");
}

template <typename Body>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, Body&& body) {
    const Error error = error_of(std::forward<Body>(body));
    EXPECT_EQ(exit_code(error.code()), exit_code(code)) << error.what();
    EXPECT_EQ(error.code(), code) << error.what();
    for (const auto& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
}

}  // namespace refold
