// Products with matrices in panels are the plain sums, for any number of rows, columns and tokens.
#include "engine/ggml/panels.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>

namespace refold {
namespace {

std::vector<float> random_floats(int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> values(static_cast<size_t>(count));
    // Few bits: every type holds them.
    for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 31) - 15) / 8.0F;
    return values;
}

// Makes 1/8 the scale of all Q8_0 blocks of rows that begin `stride` numbers apart, which then hold the
// values exactly.
void fix_scales(std::vector<float>& values, int64_t columns, int64_t stride) {
    for (size_t row = 0; row < values.size(); row += static_cast<size_t>(stride)) {
        for (size_t block = 0; block < static_cast<size_t>(columns); block += 32)
            values[row + block] = 127.0F / 8;
    }
}

struct Case {
    int64_t rows, columns, tokens;
};

void expect_sums(PanelType type, const Case& c, bool pairs) {
    auto w = random_floats(c.rows * c.columns, 1), x = random_floats((c.columns + 3) * c.tokens, 2);
    if (type == PanelType::q8) {
        fix_scales(w, c.columns, c.columns);
        fix_scales(x, c.columns, c.columns + 3);
    }
    const Panels panels(type, w, c.rows, c.columns);
    Panels::Scratch scratch;
    Panels::Input input = panels.input(x.data(), c.columns + 3, c.tokens, scratch);
    if (!pairs && type != PanelType::q8) input = {x.data(), nullptr, c.columns + 3, c.tokens};
    for (const bool add : {false, true}) {
        const int64_t stride = panels.panels() * Panels::kRows + 5;
        std::vector<float> y(static_cast<size_t>(stride * c.tokens), 7.0F);
        const int64_t half = panels.panels() / 2;
        panels.multiply(input, {0, half}, y.data(), stride, add);
        panels.multiply(input, {half, panels.panels()}, y.data(), stride, add);
        for (int64_t t = 0; t < c.tokens; ++t) {
            for (int64_t r = 0; r < stride; ++r) {
                if (!add && r >= c.rows) continue;
                float sum = add || r >= c.rows ? 7.0F : 0.0F;
                for (int64_t i = 0; i < c.columns && r < c.rows; ++i)
                    sum += w[static_cast<size_t>(r * c.columns + i)] *
                           x[static_cast<size_t>(t * (c.columns + 3) + i)];
                ASSERT_NEAR(y[static_cast<size_t>(t * stride + r)], sum, 1e-3F)
                    << "type " << static_cast<int>(type) << ", " << c.rows << " x " << c.columns << ", token "
                    << t << " of " << c.tokens;
            }
        }
    }
}

void expect_all() {
    for (const PanelType type : {PanelType::f32, PanelType::f16, PanelType::bf16}) {
        for (int64_t tokens = 1; tokens <= 17; ++tokens) {
            for (const bool pairs : {false, true}) {
                expect_sums(type, {5, 7, tokens}, pairs);
                expect_sums(type, {16, 33, tokens}, pairs);
                expect_sums(type, {111, 64, tokens}, pairs);
            }
        }
    }
}

TEST(Panels, AreTheSums) { expect_all(); }

TEST(Panels, OfQuantizedWeightsAndInputs) {
    if (!row_panels::supports(GGML_TYPE_Q8_0, 32)) GTEST_SKIP() << "a CPU without kernels";
    for (int64_t tokens = 1; tokens <= 25; ++tokens) {
        expect_sums(PanelType::q8, {5, 32, tokens}, true);
        expect_sums(PanelType::q8, {111, 96, tokens}, true);
    }
}

// The kernels of every vector width that this CPU has.
TEST(Panels, OnEveryCpu) {
    for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
        hwy::SetSupportedTargetsForTest(targets & -targets);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        expect_all();
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace refold
