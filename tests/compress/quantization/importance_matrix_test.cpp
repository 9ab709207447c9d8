// llama.cpp's importance matrices: both forms of the file, and the inputs that are measured.
#include "compress/quantization/importance_matrix.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "compress/quantization/measure_importance.h"
#include "core/error_of.h"
#include "core/temp_folder.h"
#include "engine/expression_models.h"
#include "engine/reference.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ImportanceMatrix example() {
    ImportanceMatrix matrix;
    matrix.tensors["blk.0.ffn_up.weight"] = {{0.5F, 2.0F, 0.0F}, 1024};
    matrix.tensors["output.weight"] = {{8.0F, 0.25F}, 512};
    matrix.datasets = {"a.txt", "b.txt"};
    matrix.chunks = 2;
    matrix.chunk_size = 512;
    return matrix;
}

std::string refusal(const std::string& bytes) {
    return error_of([&] { parse_importance_matrix(std::as_bytes(std::span<const char>(bytes)), "file"); });
}

ImportanceMatrix parsed(const std::string& bytes) {
    return parse_importance_matrix(std::as_bytes(std::span<const char>(bytes)), "file");
}

// ---- GGUF ----

TEST(ImportanceMatrix, IsReadAsWritten) {
    const TempFolder folder;
    save_importance_matrix(example(), folder / "m.gguf", false);
    const ImportanceMatrix read = load_importance_matrix(folder / "m.gguf");
    EXPECT_EQ(read.datasets, example().datasets);
    EXPECT_EQ(read.chunks, 2);
    EXPECT_EQ(read.chunk_size, 512);
    ASSERT_EQ(read.tensors.size(), 2U);
    for (const auto& [name, entry] : example().tensors) {
        EXPECT_EQ(read.tensors.at(name).count, entry.count) << name;
        EXPECT_EQ(read.tensors.at(name).mean_squares, entry.mean_squares) << name;
    }
    error_of([&] { save_importance_matrix(example(), folder / "m.gguf", false); }, ErrorCode::usage);
}

// What llama.cpp reads: sums over tokens and their number, each tensor in float32.
TEST(ImportanceMatrix, HasSumsAndCounts) {
    const TempFolder folder;
    save_importance_matrix(example(), folder / "m.gguf", false);
    const auto file = GgufFile::open(folder / "m.gguf");
    EXPECT_EQ(file->metadata().string("general.type"), "imatrix");
    EXPECT_EQ(file->metadata().integer("imatrix.chunk_count"), 2U);
    EXPECT_EQ(file->metadata().integer("imatrix.chunk_size"), 512U);
    std::map<std::string, std::vector<float>> values;
    for (const GgufTensor& tensor : file->tensors()) {
        ASSERT_EQ(tensor.type, DType::F32);
        auto& out = values[tensor.name];
        out.resize(tensor.data.size() / sizeof(float));
        memcpy(out.data(), tensor.data.data(), tensor.data.size());
    }
    EXPECT_THAT(values["blk.0.ffn_up.weight.in_sum2"], ElementsAre(512, 2048, 0));
    EXPECT_THAT(values["blk.0.ffn_up.weight.counts"], ElementsAre(1024));
}

// Writes a GGUF file of float32 tensors.
std::string gguf(const std::string& type, const std::map<std::string, std::vector<float>>& tensors) {
    const TempFolder folder;
    GgufMetadata metadata;
    metadata.set("general.type", GgufValue::string(type));
    std::vector<GgufOutputTensor> out;
    for (const auto& [name, values] : tensors)
        out.push_back({name, DType::F32, {static_cast<int64_t>(values.size())}, [&values](const auto& sink) {
                           sink(std::as_bytes(std::span<const float>(values)));
                       }});
    write_gguf(folder / "f", false, metadata, out);
    return read_all(folder / "f");
}

TEST(ImportanceMatrix, OfExperts) {
    const auto matrix = parsed(gguf("imatrix", {{"e.in_sum2", {2, 4, 6, 8}}, {"e.counts", {2, 0}}}));
    EXPECT_THAT(matrix.tensors.at("e").mean_squares, ElementsAre(1, 2, 1, 1));
    EXPECT_EQ(matrix.tensors.at("e").count, 2);
}

TEST(ImportanceMatrix, OtherFilesAreRefused) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(refusal(gguf("model", {{"e.in_sum2", {2}}, {"e.counts", {1}}})), HasSubstr("'model'"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e.in_sum2", {2}}})), HasSubstr("'e'"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e.counts", {2}}})), HasSubstr("without .in_sum2"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e.in_sum2", {2, kNan}}, {"e.counts", {1}}})),
                HasSubstr("'e.in_sum2'"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e.in_sum2", {2, -1}}, {"e.counts", {1}}})), HasSubstr("-1"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e.in_sum2", {2}}, {"e.counts", {kNan}}})),
                HasSubstr("'e.counts'"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e.in_sum2", {2, 3, 4}}, {"e.counts", {1, 1}}})),
                HasSubstr("2 matrices"));
    EXPECT_THAT(refusal(gguf("imatrix", {{"e", {2}}})), HasSubstr("no entries"));
}

// ---- the older form ----

void number(std::string& out, int32_t value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string binary(const std::vector<float>& values, int32_t calls, int32_t claimed) {
    std::string out;
    number(out, 1);
    number(out, 3);
    out += "a.b";
    number(out, calls);
    number(out, claimed);
    out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return out;
}

TEST(ImportanceMatrix, OlderForm) {
    std::string bytes = binary({3, 6}, 3, 2);
    EXPECT_THAT(parsed(bytes).tensors.at("a.b").mean_squares, ElementsAre(1, 2));
    EXPECT_EQ(parsed(bytes).tensors.at("a.b").count, 3);
    number(bytes, 7);
    number(bytes, 5);
    bytes += "t.txt";
    EXPECT_EQ(parsed(bytes).chunks, 7);
    EXPECT_THAT(parsed(bytes).datasets, ElementsAre("t.txt"));
    EXPECT_THAT(parsed(binary({3, 6}, 0, 2)).tensors.at("a.b").mean_squares, ElementsAre(3, 6));
    EXPECT_THAT(refusal(bytes.substr(0, bytes.size() - 1)), HasSubstr("length of the text's name"));
}

TEST(ImportanceMatrix, LyingSizesAreRefused) {
    for (const int32_t claimed : {3, std::numeric_limits<int32_t>::max()})
        EXPECT_THAT(refusal(binary({3, 6}, 3, claimed)), HasSubstr("values: 8 bytes are left"));
    EXPECT_THAT(refusal(binary({3, 6}, 3, 0)), HasSubstr("at least 1"));
    EXPECT_THAT(refusal(binary({3, 6}, 3, -1)), HasSubstr("at least 1"));
    EXPECT_THAT(refusal("this is a text"), HasSubstr("no importance matrix"));
    EXPECT_THAT(refusal(""), HasSubstr("no importance matrix"));
}

// ---- models ----

std::vector<std::vector<int32_t>> sequences() {
    return {{3, 16, 0, 7, 7, 12, 1, 39}, {5, 5, 21, 30, 2, 9, 11, 0}, {1, 2, 3, 4, 33, 20, 8, 6}};
}

Calibration text() {
    std::vector<int32_t> tokens;
    for (const auto& sequence : sequences()) tokens.insert(tokens.end(), sequence.begin(), sequence.end());
    return make_calibration("t.txt", "t", tokens, {.tokens = 24, .length = 8});
}

// Mean squares by column of rows of all sequences.
template <typename RowsOf>
std::vector<float> expected(const Model& model, size_t width, RowsOf&& rows_of) {
    std::vector<double> sums(width);
    double count = 0;
    for (const auto& tokens : sequences()) {
        const std::vector<float> rows = rows_of(reference::run(model, {tokens, {}, {}}));
        for (size_t i = 0; i < rows.size(); ++i) sums[i % width] += std::pow(static_cast<double>(rows[i]), 2);
        count += static_cast<double>(rows.size() / width);
    }
    std::vector<float> out;
    for (const double sum : sums) out.push_back(static_cast<float>(sum / count));
    return out;
}

std::vector<float> of_tap(const Model& model, size_t layer, Tap tap, size_t width) {
    return expected(model, width, [&](const auto& run) {
        return reference::flat(run.taps.at({layer, tap}));
    });
}

const std::string& tensor_of(const Model& model, size_t layer, Slot slot) {
    return std::get<Dense>(model.topology.at(layer, slot)).tensor;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-3F * (1 + wanted[i])) << i;
}

TEST(Importance, IsOfEveryMatrixsInputs) {
    ExpressionBuilder b("llama");
    const Model model = b.finish();
    const ImportanceMatrix matrix = measure_importance(model, text(), 1);
    const std::pair<Slot, Tap> inputs[] = {{Slot::attn_q, Tap::attn_input}, {Slot::attn_v, Tap::attn_input},
                                           {Slot::attn_o, Tap::attn_inner}, {Slot::ffn_gate, Tap::ffn_input},
                                           {Slot::ffn_up, Tap::ffn_input},  {Slot::ffn_down, Tap::ffn_inner}};
    for (size_t layer = 0; layer < model.topology.layers.size(); ++layer) {
        for (const auto& [slot, tap] : inputs) {
            const auto& entry = matrix.tensors.at(tensor_of(model, layer, slot));
            EXPECT_EQ(entry.count, 24);
            expect_close(entry.mean_squares, of_tap(model, layer, tap, entry.mean_squares.size()));
        }
    }
    const auto gain = floats_of(model, std::get<Dense>(model.topology.globals.at(Slot::output_norm)).tensor);
    const auto normed = [&](const auto& run) {
        auto rows = reference::flat(run.residual);
        for (size_t at = 0; at < rows.size(); at += gain.size()) {
            double squares = 0;
            for (size_t i = 0; i < gain.size(); ++i)
                squares += std::pow(static_cast<double>(rows[at + i]), 2);
            const double scale = 1 / std::sqrt(squares / static_cast<double>(gain.size()) +
                                               static_cast<double>(model.config.norm_eps));
            for (size_t i = 0; i < gain.size(); ++i) rows[at + i] *= static_cast<float>(scale) * gain[i];
        }
        return rows;
    };
    expect_close(
        matrix.tensors.at(std::get<Dense>(model.topology.globals.at(Slot::output)).tensor).mean_squares,
        expected(model, gain.size(), normed));
    EXPECT_THAT(matrix.datasets, ElementsAre("t.txt"));
    EXPECT_EQ(matrix.chunks, 3);
    EXPECT_EQ(matrix.chunk_size, 8);
}

TEST(Importance, OfSharedTensorsIsOfAllUses) {
    ExpressionBuilder b("llama");
    b.tie(2, 0, Slot::ffn_down);
    const Model model = b.finish();
    const ImportanceMatrix matrix = measure_importance(model, text(), 1);
    const auto& entry = matrix.tensors.at(tensor_of(model, 0, Slot::ffn_down));
    EXPECT_EQ(entry.count, 48);
    const size_t width = entry.mean_squares.size();
    auto sum = of_tap(model, 0, Tap::ffn_inner, width);
    const auto other = of_tap(model, 2, Tap::ffn_inner, width);
    for (size_t i = 0; i < width; ++i) sum[i] = (sum[i] + other[i]) / 2;
    expect_close(entry.mean_squares, sum);
}

// Columns of attn.o follow their heads; those that no layer takes get nothing.
TEST(Importance, OfHeadsIsOfTheirColumns) {
    ExpressionBuilder b("llama");
    const std::string first = tensor_of(b.model, 0, Slot::attn_o), own = tensor_of(b.model, 1, Slot::attn_o);
    b.at(1, Slot::attn_o) = Heads{{{own, 0, 2}, {first, 1, 2}}};
    const Model model = b.finish();
    const ImportanceMatrix matrix = measure_importance(model, text(), 1);
    const auto width = static_cast<size_t>(4 * model.config.head_dim), head = width / 4;
    const auto inner = of_tap(model, 1, Tap::attn_inner, width);
    auto wanted = inner;
    std::fill(wanted.begin() + static_cast<std::ptrdiff_t>(2 * head), wanted.end(), 0.0F);
    expect_close(matrix.tensors.at(own).mean_squares, wanted);
    auto both = of_tap(model, 0, Tap::attn_inner, width);
    for (size_t i = 0; i < 2 * head; ++i) both[head + i] += inner[2 * head + i];
    for (float& value : both) value /= 2;
    expect_close(matrix.tensors.at(first).mean_squares, both);
}

TEST(Importance, OfFactors) {
    ExpressionBuilder b("llama");
    const LowRank e = b.low_rank(1, Slot::ffn_up, 5, true);
    b.at(1, Slot::ffn_up) = e;
    const Model model = b.finish();
    const ImportanceMatrix matrix = measure_importance(model, text(), 1);
    const auto v = floats_of(model, e.v), scale = floats_of(model, e.scale);
    const size_t in = v.size() / 5;
    expect_close(matrix.tensors.at(e.v).mean_squares, of_tap(model, 1, Tap::ffn_input, in));
    expect_close(
        matrix.tensors.at(e.u).mean_squares, expected(model, 5, [&](const auto& run) {
            const auto x = reference::flat(run.taps.at({1, Tap::ffn_input}));
            std::vector<float> out;
            for (size_t t = 0; t < x.size() / in; ++t) {
                for (size_t r = 0; r < 5; ++r) {
                    double sum = 0;
                    for (size_t i = 0; i < in; ++i)
                        sum += static_cast<double>(v[r * in + i]) * static_cast<double>(x[t * in + i]);
                    out.push_back(static_cast<float>(sum) * scale[static_cast<size_t>(e.row) * 5 + r]);
                }
            }
            return out;
        }));
}

TEST(Importance, OfAnotherModelIsRefused) {
    ExpressionBuilder b("llama");
    const Model model = b.finish();
    ImportanceMatrix matrix = measure_importance(model, text(), 1);
    check_importance_matrix(matrix, model);
    const std::string& name = tensor_of(model, 1, Slot::ffn_down);
    matrix.tensors.at(name).mean_squares.pop_back();
    EXPECT_THAT(error_of([&] { check_importance_matrix(matrix, model); }), HasSubstr(name));
    matrix.tensors.clear();
    matrix.tensors["encoder.weight"] = {{1}, 1};
    EXPECT_THAT(error_of([&] { check_importance_matrix(matrix, model); }), HasSubstr("no entry"));
}

}  // namespace
}  // namespace refold
