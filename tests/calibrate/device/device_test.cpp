// Compression on another device than the CPU, which fake_device.h stands in for: the same numbers, from
// tensors that lie there, in memory that does not grow with the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/calibration_device.h"
#include "calibrate/residual_stream.h"
#include "compress/calibrated.h"
#include "compress/compensation/layer_probes.h"
#include "compress/logit_distance.h"
#include "compress/rounding/gptq_rounding.h"
#include "compress/small_model.h"
#include "core/error_of.h"
#include "engine/all_models.h"
#include "engine/fake_device.h"
#include "engine/torch/linalg.h"
#include "fit/sensitivity.h"
#include "linalg/least_squares.h"
#include "linalg/reduced_rank.h"
#include "linalg/svd.h"
#include "linalg/tucker.h"

namespace refold {
namespace {

using blas::Op;
using testing::HasSubstr;

constexpr blas::Worth kAll{0, 0};
const CalibrationDevice kThere{EngineKind::torch, fake_device::kName};

template <typename Real>
std::vector<Real> random_numbers(int64_t count, uint64_t seed) {
    blas::Normal normal(seed);
    std::vector<Real> out(static_cast<size_t>(count));
    for (Real& x : out) x = static_cast<Real>(normal());
    return out;
}

// Positive definite, and not what the other triangle says.
template <typename Real>
std::vector<Real> lower_of_positive(int64_t n) {
    std::vector<Real> out = random_numbers<Real>(n * n, 3);
    for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i * (n + 1))] = static_cast<Real>(3 * n);
    return out;
}

template <typename Real>
void expect_near(const std::vector<Real>& found, const std::vector<Real>& expected, double tolerance,
                 const char* what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], tolerance) << what << " " << i;
}

// What `compute` gives on the CPU, and then on the device, which has to be used.
template <typename Compute>
void expect_same(const char* what, double tolerance, Compute&& compute) {
    const auto expected = compute();
    blas::set_device(torch_linalg(fake_device::kDevice), kAll);
    fake_device::g_most_bytes = fake_device::g_bytes;
    const auto found = compute();
    EXPECT_GT(fake_device::g_most_bytes, size_t{0}) << what << " stayed on the CPU";
    blas::set_device(nullptr);
    EXPECT_EQ(fake_device::g_bytes, size_t{0}) << what << " left something there";
    expect_near(found, expected, tolerance, what);
}

template <typename Real>
void expect_same_products() {
    const double tolerance = sizeof(Real) == sizeof(float) ? 1e-4 : 1e-12;
    const auto a = random_numbers<Real>(7 * 5, 1), b = random_numbers<Real>(5 * 6, 2),
               c = random_numbers<Real>(7 * 6, 3);
    for (const Op op_a : {Op::plain, Op::transposed}) {
        for (const Op op_b : {Op::plain, Op::transposed}) {
            expect_same("a product", tolerance, [&] {
                std::vector<Real> out = c;
                blas::multiply(op_a, op_b, {7, 6, 5}, a.data(), b.data(), out.data(), Real(0.5), Real(-2));
                return out;
            });
        }
    }
    expect_same("a symmetric product", tolerance, [&] {
        std::vector<Real> out(6 * 5);
        blas::multiply_symmetric(5, 6, lower_of_positive<Real>(5).data(), b.data(), out.data());
        return out;
    });
    expect_same("a Gram matrix's lower triangle", tolerance, [&] {
        const auto x = random_numbers<float>(4 * 3 * 5, 4);
        std::vector<Real> out;
        for (const auto& [a_, n, c_] : {std::tuple(4, 3, 5), std::tuple(1, 12, 5), std::tuple(20, 3, 1)}) {
            const auto gram = blas::gram<Real>(x.data(), a_, n, c_);
            for (int64_t i = 0; i < n; ++i)
                out.insert(out.end(), gram.begin() + i * n + i, gram.begin() + (i + 1) * n);
        }
        return out;
    });
    expect_same("eigenvectors", tolerance, [&] {
        const auto eigen = blas::leading_eigenvectors(lower_of_positive<Real>(9), 9, 4);
        const auto values = blas::leading_eigenvectors(lower_of_positive<Real>(9), 9, 0).values;
        std::vector<Real> out(eigen.values.begin(), eigen.values.end());
        out.insert(out.end(), values.begin(), values.end());
        for (int64_t k = 0; k < 4; ++k) {  // up to their signs
            const Real first = eigen.vectors[static_cast<size_t>(9 * k)];
            for (int64_t i = 0; i < 9; ++i)
                out.push_back(std::copysign(Real(1), first) * eigen.vectors[static_cast<size_t>(9 * k + i)]);
        }
        return out;
    });
    expect_same("the span of a basis", tolerance, [&] {
        auto x = random_numbers<Real>(8 * 3, 5);
        blas::householder(8, 3, x.data());
        std::vector<Real> projection(8 * 8);
        blas::multiply(Op::plain, Op::transposed, {8, 8, 3}, x.data(), x.data(), projection.data());
        return projection;
    });
}

TEST(DeviceLinalg, IsTheCpus) {
    expect_same_products<float>();
    expect_same_products<double>();
    const auto x = random_numbers<float>(3 * 4 * 5, 6), y = random_numbers<float>(3 * 2 * 5, 7);
    expect_same("products with one factor", 1e-4, [&] {
        std::vector<float> out(3 * 2 * 5);
        blas::multiply_each(Op::plain, Op::transposed, {3, 2, 4}, {5, 12, 0, 6}, x.data(), y.data(),
                            out.data());
        return out;
    });
    expect_same("a sum of products", 1e-4, [&] {
        std::vector<float> out(4 * 2);
        blas::multiply_each(Op::transposed, Op::plain, {4, 2, 3}, {5, 12, 6, 0}, x.data(), y.data(),
                            out.data());
        return out;
    });
    expect_same("mixed sums", 1e-4, [&] {
        auto gram = blas::mixed_gram(x.data(), 3, 4, 5);
        for (int64_t j = 1; j < 4; ++j) std::fill_n(gram.begin() + j * 4, j, 0.0);
        return gram;
    });
    expect_same("orthonormal columns", 1e-4, [&] {
        auto basis = random_numbers<float>(9 * 4, 8);
        EXPECT_FALSE(blas::orthonormalize(3, 4, std::vector<float>(12, 1).data()));
        blas::householder(9, 4, basis.data());
        basis[3] += 0.1F;
        EXPECT_TRUE(blas::orthonormalize(9, 4, basis.data()));
        std::vector<float> square(16), projection(81);
        blas::multiply(Op::transposed, Op::plain, {4, 4, 9}, basis.data(), basis.data(), square.data());
        for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(square[i], i % 5 == 0, 1e-5);
        blas::multiply(Op::plain, Op::transposed, {9, 9, 4}, basis.data(), basis.data(), projection.data());
        return projection;
    });
    expect_same("a Cholesky factor", 1e-10, [&] {
        auto g = lower_of_positive<double>(6);
        EXPECT_TRUE(blas::cholesky(6, g.data()));
        std::vector<double> indefinite = {1, 2, 0, 1};
        EXPECT_FALSE(blas::cholesky(2, indefinite.data()));
        return g;
    });
    expect_same("solutions", 1e-10, [&] {
        auto b = random_numbers<double>(6 * 3, 9), more = b;
        auto g = lower_of_positive<double>(6);
        EXPECT_TRUE(blas::solve_shifted(6, 3, g.data(), 2.5, b.data()));
        EXPECT_EQ(g, lower_of_positive<double>(6));
        EXPECT_FALSE(blas::solve_shifted(6, 3, g.data(), -1000, std::vector<double>(18).data()));
        EXPECT_TRUE(blas::solve_positive(6, 3, g.data(), more.data()));
        b.insert(b.end(), more.begin(), more.end());
        return b;
    });
    expect_same("a solution from the right", 1e-4, [&] {
        auto rows = random_numbers<float>(7 * 5, 10);
        EXPECT_TRUE(blas::solve_right(7, 5, lower_of_positive<float>(5).data(), rows.data()));
        return rows;
    });
}

TEST(DeviceLinalg, SolvesWhatTheCpuDoes) {
    const auto x = random_numbers<float>(300 * 12, 1), y = random_numbers<float>(300 * 5, 2),
               prior = random_numbers<float>(5 * 12, 3);
    expect_same("least squares", 1e-4, [&] {
        LeastSquares fit(12, 5), held_out(12, 5);
        fit.add(150, x.data(), y.data());
        LeastSquares copied = fit;
        fit.add(50, x.data() + 150 * 12, y.data() + 150 * 5);
        copied.add(50, x.data() + 150 * 12, y.data() + 150 * 5);
        held_out.add(100, x.data() + 200 * 12, y.data() + 200 * 5);
        std::vector<float> out = solve_with_held_out(fit, held_out, prior).weights;
        for (const LeastSquares* sums : {&fit, &copied})
            for (const double value : sums->gram()) out.push_back(static_cast<float>(value));
        return out;
    });
    const auto matrix = random_numbers<float>(40 * 30, 4);
    expect_same("singular values", 1e-4, [&] {
        auto values = truncated_svd(matrix, 40, 30, 6).s;
        for (const double s : randomized_svd(matrix, 40, 30, 6, 4, 1).s) values.push_back(s);
        return values;
    });
    expect_same("a map of low rank", 1e-4, [&] {
        std::vector<double> gram = blas::gram<double>(x.data(), 1, 12, 300);
        for (size_t i = 0; i < 12; ++i)
            for (size_t j = 0; j < i; ++j) gram[i * 12 + j] = gram[j * 12 + i];
        const auto energies = output_energies(gram, 12, prior);
        auto out = product_of(reduce_rank(gram, 12, prior, 3), 12);
        out.insert(out.end(), energies.begin(), energies.end());
        return out;
    });
    const auto tensor = random_numbers<float>(12 * 10 * 3 * 4, 5);
    expect_same("Tucker factors", 1e-4, [&] {
        const auto found = partial_tucker(tensor, {12, 10, 3, 4}, {.ranks = {6, 5, 2}});
        return reconstruct(found, {12, 10, 3, 4});
    });
}

TEST(DeviceLinalg, RoundsAsTheCpuDoes) {
    const auto weights = random_numbers<float>(24 * 96, 1), inputs = random_numbers<float>(200 * 96, 2);
    LeastSquares sums(96, 0);
    sums.add(200, inputs.data(), nullptr);
    const std::vector<double> gram(sums.gram().begin(), sums.gram().end());
    expect_same("GPTQ's rounding", 1e-6, [&] {
        return gptq_rounded(weights, {gram, 96, 96}, DType::Q4_0).values;
    });
}

TEST(DeviceLinalg, RefusesWhatIsNotFinite) {
    const OnDevice on(kThere, kAll);
    LeastSquares sums(2, 1);
    const std::vector<float> x = {1, NAN}, y = {1};
    EXPECT_THAT(error_of([&] { sums.add(1, x.data(), y.data()); }, ErrorCode::input),
                HasSubstr("not finite"));
}

TEST(DeviceLinalg, LeavesWhatIsNotWorthTheWay) {
    const OnDevice on(kThere);
    fake_device::g_most_bytes = fake_device::g_bytes;
    const auto small = random_numbers<float>(64 * 64, 1), wide = random_numbers<float>(2048 * 64, 2);
    std::vector<float> out(2048 * 2048);
    blas::multiply(Op::plain, Op::plain, {64, 64, 64}, small.data(), small.data(), out.data());
    // Enough work, but little of it for each byte; then the same with a result that stays small.
    blas::multiply(Op::plain, Op::transposed, {2048, 2048, 64}, wide.data(), wide.data(), out.data());
    EXPECT_EQ(fake_device::g_most_bytes, fake_device::g_bytes);
    const auto large = random_numbers<float>(512 * 2048, 2);
    blas::multiply(Op::plain, Op::transposed, {512, 512, 2048}, large.data(), large.data(), out.data());
    EXPECT_GT(fake_device::g_most_bytes, fake_device::g_bytes);
}

// Every layer alone, from the same residual stream: what it gives, and every activation in it.
TEST(DeviceStreams, LayersGiveWhatGgmlsGive) {
    for (const auto& [name, model] : all_cases()) {
        if (model.config.n_stream > 1) continue;
        const int64_t length = 6;
        const auto residual = random_numbers<float>(length * model.config.n_embd, 7);
        const auto run = [&](const EngineOptions& of, LayerRange range,
                             std::map<Tap, std::vector<float>>& taps) {
            EngineOptions options = of;
            options.context = options.chunk = length;
            options.f32 = true;
            options.range = range;
            auto observer = std::make_shared<Observer>();
            for (int tap = 0; tap < static_cast<int>(Tap::logits); ++tap)
                if (static_cast<Tap>(tap) != Tap::probabilities)
                    observer->taps.insert({range.last - 1, static_cast<Tap>(tap)});
            observer->see = [&](const Tapped& seen) {
                EXPECT_EQ(seen.tokens, length);
                taps[seen.tap].assign(seen.values.begin(), seen.values.end());
            };
            options.observer = observer;
            std::vector<float> out;
            SingleSequence sequence(model, options);
            sequence.evaluate_range(std::span<const float>(residual),
                                    [&](size_t, std::span<const float> rows) {
                                        out.insert(out.end(), rows.begin(), rows.end());
                                    });
            return out;
        };
        const OnDevice on(kThere);
        for (size_t layer = 0; layer < model.topology.layers.size(); ++layer) {
            const LayerRange range{model.topology.source(layer).from(layer), layer + 1};
            std::map<Tap, std::vector<float>> found, expected;
            const auto out = run(calibration_engine(1), range, found),
                       wanted = run({.threads = 1}, range, expected);
            EXPECT_LE(scaled_difference(out, wanted), 1e-4) << name << " layer " << layer;
            EXPECT_EQ(found.size(), expected.size()) << name << " layer " << layer;
            for (const auto& [tap, values] : expected)
                EXPECT_LE(scaled_difference(found[tap], values), 1e-4)
                    << name << " layer " << layer << " " << tap_name(tap);
        }
    }
}

// `length` tokens of text, through all layers.
std::vector<float> final_stream(const Model& model, int64_t length) {
    ResidualStream stream(model, {random_tokens(static_cast<size_t>(length), model.config.n_vocab, 1)},
                          length, 1);
    for (size_t p = 0; p < model.topology.layers.size(); ++p) stream.advance(model, p);
    return {stream.residual(0).begin(), stream.residual(0).end()};
}

TEST(DeviceStreams, TextGoesThroughAModelAsByGgml) {
    for (const auto& name : fixture_decoders()) {
        const Model model = fixture_model(name);
        if (model.config.n_stream > 1) continue;
        const auto expected = final_stream(model, 12);
        const OnDevice on(kThere);
        EXPECT_LE(scaled_difference(final_stream(model, 12), expected), 1e-4) << name;
    }
}

TEST(DeviceStreams, AnObserverOfTapsAloneGetsNoMore) {
    const Model model = small_model({}, scattered_small);
    const OnDevice on(kThere);
    ResidualStream stream(model, {{1, 2, 3}}, 3, 1);
    for (const bool only_taps : {false, true}) {
        ResidualStream::Pass pass(stream, model, 0, {Tap::attn_inner}, only_taps);
        EXPECT_EQ(pass.run(0).empty(), only_taps);
        EXPECT_EQ(pass.tapped(Tap::attn_inner).size(), size_t{3 * 4});
    }
}

const SmallShape kShape{
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 8, .embd = 32, .ff = 64, .vocab = 48};

TEST(DeviceCompression, MethodsGiveTheSameModel) {
    const Model model = small_model(kShape, scattered_small);
    const Calibration text = random_text(model, 16, 32);
    for (const std::vector<std::string>& steps : std::vector<std::vector<std::string>>{
             {"direct_share ratio=0.3", "refit type=f32"},
             {"drop layers=1 modules=attention", "compensation type=f32"},
             {"narrow ratio=0.5 multiple=8"},
             {"quantize type=q4_0 rounding=gptq"},
             {"quantize type=q4_0 rounding=imatrix"},
             {"low_rank parameters=0.7"},
             {"tensorllm ranks=16,6,3"},
             {"llmdrop count=1"},
         }) {
        const Model expected = calibrated(model, steps, text).model;
        EXPECT_GT(distance(expected, model), 0) << steps.back();
        const OnDevice on(kThere, kAll);
        fake_device::g_most_bytes = fake_device::g_bytes;
        const Model found = calibrated(model, steps, text).model;
        EXPECT_GT(fake_device::g_most_bytes, fake_device::g_bytes) << steps.back();
        EXPECT_LE(distance(found, expected), 1e-2 * distance(expected, model)) << steps.back();
    }
}

TEST(DeviceCompression, ProbesAndDivergencesAreTheSame) {
    const Model model = small_model(kShape, scattered_small);
    Model disturbed = model;
    const std::string& name = std::get<Dense>(model.topology.at(1, Slot::ffn_down)).tensor;
    disturbed.tensors[name] = float_tensor(model.tensor(name).shape, random_numbers<float>(32 * 64, 1));
    const std::vector<std::vector<int32_t>> text = {random_tokens(30, 48, 1), random_tokens(20, 48, 2)};
    const auto measured = [&] {
        LayerProbes probes(model, text, 1);
        return std::vector<double>{probes.divergence(disturbed, 1), Divergence(model, text, 1).of(disturbed)};
    };
    const auto expected = measured();
    const OnDevice on(kThere, kAll);
    const auto found = measured();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]);
}

// The most that refit takes on the device, with all of linalg there.
size_t most_of_refit(int64_t layers) {
    SmallShape shape = kShape;
    shape.layers = layers;
    shape.embd = shape.ff = 128;
    const Model model = small_model(shape, scattered_small);
    const Calibration text = random_text(model, 16, 32);
    const OnDevice on(kThere, kAll);
    fake_device::g_most_bytes = fake_device::g_bytes;
    calibrated(model, {"direct_share ratio=0.3", "refit type=f32"}, text);
    return fake_device::g_most_bytes;
}

TEST(DeviceMemory, DoesNotGrowWithTheModel) {
    const size_t few = most_of_refit(3);
    EXPECT_LE(static_cast<double>(most_of_refit(12)), 1.01 * static_cast<double>(few));
}

// A stream takes the weights of a layer and the activations of a sequence, and little besides.
TEST(DeviceMemory, HoldsOneLayer) {
    constexpr int64_t kLength = 16;
    const SmallShape shape{
        .layers = 8, .heads = 8, .kv_heads = 8, .head_dim = 16, .embd = 128, .ff = 384, .vocab = 4096};
    const Model model = small_model(shape, scattered_small);
    const OnDevice on(kThere);
    fake_device::g_most_bytes = fake_device::g_bytes;
    final_stream(model, kLength);
    const int64_t weights = 4 * 128 * 128 + 3 * 128 * 384 + 2 * 128,
                  activations = kLength * (16 * 128 + 3 * 384);
    EXPECT_LE(fake_device::g_most_bytes, static_cast<size_t>(weights + activations) * sizeof(float));
    EXPECT_GE(fake_device::g_most_bytes, static_cast<size_t>(weights) * sizeof(float));
}

TEST(OnDevice, NamesTheDeviceAndRefusesOthers) {
    EXPECT_EQ(calibration_device(), "cpu");
    EXPECT_FALSE(uses_torch());
    EXPECT_EQ(gradient_device("auto"), "auto");
    {
        const OnDevice on(kThere);
        EXPECT_EQ(calibration_device(), fake_device::kName);
        EXPECT_EQ(calibration_engine(3).device, fake_device::kName);
        EXPECT_EQ(gradient_device("auto"), fake_device::kName);
        EXPECT_EQ(gradient_device("cpu"), "cpu");
    }
    {
        const OnDevice on({EngineKind::torch, "cpu"});
        EXPECT_TRUE(uses_torch());
        EXPECT_EQ(calibration_device(), "cpu");
        EXPECT_EQ(blas::device(), nullptr);
    }
    EXPECT_FALSE(uses_torch());
    EXPECT_THAT(error_of(
                    [] {
                        OnDevice({EngineKind::ggml, "cuda"});
                    },
                    ErrorCode::usage),
                HasSubstr("--engine torch"));
    EXPECT_THAT(error_of([] { OnDevice({EngineKind::torch, "gpu"}); }, ErrorCode::usage), HasSubstr("'gpu'"));
}

}  // namespace
}  // namespace refold
