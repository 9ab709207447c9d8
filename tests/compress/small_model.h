// Checks of which weights a shared model's heads have.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compress/head_sharing/head_matches.h"
#include "compress/recipe.h"
#include "compress/registry.h"
#include "compress/rewrite/heads.h"
#include "core/error.h"
#include "model/accounting.h"
#include "model/materialize.h"
#include "model/small_model.h"
#include "model/validate.h"

namespace refold {

inline std::vector<std::byte> bytes_of(const Model& model, const std::string& name) {
    const TensorBytes bytes(model.tensor(name));
    return {bytes.bytes().begin(), bytes.bytes().end()};
}

// One step with settings "option=value", its result checked.
inline Model run_method(const Method& method, const Model& model, const std::vector<std::string>& settings,
                        StepReport* report = nullptr) {
    std::vector<GivenOption> given;
    for (const std::string& setting : settings) {
        const size_t equals = setting.find('=');
        given.push_back({setting.substr(0, equals), setting.substr(equals + 1), "test"});
    }
    const Options options(method, given);
    StepReport own;
    Step step{options, report != nullptr ? *report : own, nullptr, model};
    Model out = method.apply(model, step);
    validate(out);
    return out;
}
inline Model run_method(const std::string& method, const Model& model,
                        const std::vector<std::string>& settings, StepReport* report = nullptr) {
    return run_method(find_method(method), model, settings, report);
}

inline uint64_t parameters(const Model& model) { return account(model).model.parameters; }

// Its tensors have shapes and types, and cannot be read.
inline Model unreadable(Model model) {
    model.shapes_only = true;
    for (auto& [name, tensor] : model.tensors)
        tensor.produce = []() -> std::vector<std::byte> { fail(ErrorCode::input, "test", "no weights"); };
    return model;
}

// Everything as it was, bit for bit.
inline void expect_identical(const Model& same, const Model& model) {
    EXPECT_EQ(same.topology, model.topology);
    ASSERT_EQ(same.tensors.size(), model.tensors.size());
    for (const auto& [name, tensor] : model.tensors) {
        EXPECT_EQ(same.tensor(name).shape, tensor.shape) << name;
        EXPECT_EQ(same.tensor(name).type, tensor.type) << name;
        EXPECT_EQ(bytes_of(same, name), bytes_of(model, name)) << name;
    }
}

// The weights of one unit in a slot, as floats.
inline std::vector<float> unit_weights(const Model& model, Unit unit, Slot slot) {
    const SlotShape shape = slot_shape(slot, model.config, unit.layer);
    const bool queries = slot == Slot::attn_q || slot == Slot::attn_o;
    const int64_t width = model.config.head_dim * (queries ? model.config.q_per_kv() : 1);
    const std::vector<float> all = materialize(model, model.topology.at(unit.layer, slot), slot, unit.layer);
    std::vector<float> out;
    for (int64_t r = 0; r < shape.out; ++r) {
        for (int64_t c = 0; c < shape.in; ++c) {
            const int64_t along = heads_are_columns(slot) ? c : r;
            if (along / width == unit.index) out.push_back(all[static_cast<size_t>(r * shape.in + c)]);
        }
    }
    return out;
}

// In `slots`, every unit of `shared` has the weights that its source in `source` (or itself) has in
// `original`. All other weights, except those of `unchecked`, are the original's.
inline void expect_units(const Model& shared, const Model& original, const std::map<Unit, Unit>& source,
                         const std::vector<Slot>& slots, const std::vector<Slot>& unchecked = {}) {
    for (size_t p = 0; p < original.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : original.topology.layers[p]) {
            if (std::find(unchecked.begin(), unchecked.end(), slot) != unchecked.end()) continue;
            if (std::find(slots.begin(), slots.end(), slot) == slots.end()) {
                EXPECT_EQ(materialize(shared, shared.topology.at(p, slot), slot),
                          materialize(original, expression, slot))
                    << "layer " << p << " " << slot_name(slot);
                continue;
            }
            for (int64_t u = 0; u < original.config.n_head_kv; ++u) {
                const Unit unit{p, u};
                const Unit from = source.contains(unit) ? source.at(unit) : unit;
                EXPECT_EQ(unit_weights(shared, unit, slot), unit_weights(original, from, slot))
                    << "layer " << p << " unit " << u << " " << slot_name(slot);
            }
        }
    }
}

inline const std::vector<Slot> kQk = {Slot::attn_q, Slot::attn_k};

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
