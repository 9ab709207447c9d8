#include "engine/device_split.h"

#include <gtest/gtest.h>

#include "core/code_of.h"
#include "engine/ggml/looped_block.h"
#include "engine/looped_models.h"

namespace refold {
namespace {

using Layers = std::vector<size_t>;

std::vector<Device> devices_of(const std::vector<uint64_t>& free) {
    std::vector<Device> out;
    for (size_t d = 0; d < free.size(); ++d)
        out.push_back({.name = fmt::format("gpu{}", d), .module = "GPU", .free = free[d]});
    return out;
}

LayerNeeds equal_layers(size_t count, uint64_t output = 0) {
    return {std::vector<uint64_t>(count, 90), std::vector<uint64_t>(count, 10),
            std::vector<std::optional<size_t>>(count), output};
}

TEST(DeviceSplit, InProportionToFreeMemory) {
    const LayerNeeds needs = equal_layers(6);
    EXPECT_EQ(split_layers(needs, devices_of({1000}), -1).layers, Layers(6, 0));
    EXPECT_EQ(split_layers(needs, devices_of({1000, 1000}), -1).layers, (Layers{0, 0, 0, 1, 1, 1}));
    EXPECT_EQ(split_layers(needs, devices_of({500, 1000}), -1).layers, (Layers{0, 0, 1, 1, 1, 1}));
    EXPECT_EQ(split_layers(needs, devices_of({1, 1000, 1}), -1).layers, Layers(6, 1));
    // Of one it is not known.
    EXPECT_EQ(split_layers(needs, devices_of({500, 0}), -1).layers, (Layers{0, 0, 0, 1, 1, 1}));
}

TEST(DeviceSplit, OutputIsOnTheLastDevice) {
    const DeviceSplit split = split_layers(equal_layers(4, 200), devices_of({1000, 1000}), -1);
    EXPECT_EQ(split.layers, (Layers{0, 0, 0, 1}));
    EXPECT_EQ(split.output, 1U);
    EXPECT_EQ(split.needed, (std::vector<uint64_t>{300, 300, 0}));
}

TEST(DeviceSplit, OtherLayersAreOnTheCpu) {
    const LayerNeeds needs = equal_layers(4, 50);
    const DeviceSplit some = split_layers(needs, devices_of({1000}), 3);
    EXPECT_EQ(some.layers, (Layers{1, 0, 0, 0}));
    EXPECT_EQ(some.output, 0U);
    EXPECT_EQ(some.needed, (std::vector<uint64_t>{350, 100}));
    const DeviceSplit none = split_layers(needs, devices_of({1000}), 0);
    EXPECT_EQ(none.layers, Layers(4, 1));
    EXPECT_EQ(none.output, 1U);
    EXPECT_EQ(split_layers(needs, devices_of({1000}), 9).layers, Layers(4, 0));
}

// The block of a loop lies on one device whichever loop uses it, and is counted once.
TEST(DeviceSplit, LoopsAreWhereTheirWeightsAre) {
    const Model model = looped_model("llama", {.loops = 3, .layers = 4, .lora = false});
    const EngineOptions options{.context = 16, .f32 = true};
    const LayerNeeds needs = layer_needs(model, options);
    EXPECT_EQ(needs.stored_layers(), 4);
    // Run loop by loop, its cache has rows of all loops.
    const LoopedBlock loops = looped_block(model);
    EXPECT_EQ(layer_needs(loops.block, options, 3).cache[0], 3 * layer_needs(loops.block, options).cache[0]);
    EXPECT_EQ(split_layers(needs, devices_of({1 << 30, 1 << 30}), -1).layers,
              (Layers{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1}));
    EXPECT_EQ(split_layers(needs, devices_of({1 << 30}), 1).layers,
              (Layers{1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0}));
}

TEST(DeviceSplit, SaysWhatFits) {
    const LayerNeeds needs = equal_layers(8, 100);
    const auto check = [&](const std::vector<uint64_t>& free) {
        const auto devices = devices_of(free);
        check_room(needs, split_layers(needs, devices, -1), devices);
    };
    check({900});
    check({0});
    EXPECT_EQ(code_of([&] { check({899}); }, "--gpu-layers 7 of 8 fits"), ErrorCode::io);
    EXPECT_EQ(
        code_of([&] { check({450}); }, "gpu0 has 450 B of free memory, and its part of the model needs"),
        ErrorCode::io);
    EXPECT_EQ(code_of([&] { check({450}); }, "--gpu-layers 3 of 8 fits"), ErrorCode::io);
    EXPECT_EQ(code_of([&] { check({150}); }, "not even one layer fits"), ErrorCode::io);
}

}  // namespace
}  // namespace refold
