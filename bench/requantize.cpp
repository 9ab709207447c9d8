// Writes a model in another element type with libllama, as a dense model for the benchmarks.
#include <fmt/format.h>
#include <ggml.h>
#include <llama.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "compress/quantization/importance_matrix.h"
#include "core/error.h"
#include "io/ggml_log.h"
#include "text/llama_log.h"

namespace {

const std::map<std::string, llama_ftype> kTypes = {
    {"f32", LLAMA_FTYPE_ALL_F32},          {"f16", LLAMA_FTYPE_MOSTLY_F16},
    {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},     {"q6_k", LLAMA_FTYPE_MOSTLY_Q6_K},
    {"q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},     {"q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
    {"q5_k_s", LLAMA_FTYPE_MOSTLY_Q5_K_S}, {"q5_k_m", LLAMA_FTYPE_MOSTLY_Q5_K_M},
    {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},     {"q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
    {"q4_k_s", LLAMA_FTYPE_MOSTLY_Q4_K_S}, {"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M},
    {"q3_k_s", LLAMA_FTYPE_MOSTLY_Q3_K_S}, {"q3_k_m", LLAMA_FTYPE_MOSTLY_Q3_K_M},
    {"q3_k_l", LLAMA_FTYPE_MOSTLY_Q3_K_L}, {"q2_k", LLAMA_FTYPE_MOSTLY_Q2_K},
    {"q2_k_s", LLAMA_FTYPE_MOSTLY_Q2_K_S}, {"iq1_s", LLAMA_FTYPE_MOSTLY_IQ1_S},
    {"iq1_m", LLAMA_FTYPE_MOSTLY_IQ1_M},   {"iq2_xxs", LLAMA_FTYPE_MOSTLY_IQ2_XXS},
    {"iq2_xs", LLAMA_FTYPE_MOSTLY_IQ2_XS}, {"iq2_s", LLAMA_FTYPE_MOSTLY_IQ2_S},
    {"iq2_m", LLAMA_FTYPE_MOSTLY_IQ2_M},   {"iq3_xxs", LLAMA_FTYPE_MOSTLY_IQ3_XXS},
    {"iq3_xs", LLAMA_FTYPE_MOSTLY_IQ3_XS}, {"iq3_s", LLAMA_FTYPE_MOSTLY_IQ3_S},
    {"iq3_m", LLAMA_FTYPE_MOSTLY_IQ3_M},   {"iq4_xs", LLAMA_FTYPE_MOSTLY_IQ4_XS},
    {"iq4_nl", LLAMA_FTYPE_MOSTLY_IQ4_NL}, {"mxfp4", LLAMA_FTYPE_MOSTLY_MXFP4_MOE}};

struct Arguments {
    std::string input, output, type, imatrix, embedding_type, output_type;
};

// GGML_TYPE_COUNT, libllama's own choice, for no name.
ggml_type type_of(const std::string& name) {
    if (name.empty()) return GGML_TYPE_COUNT;
    for (int id = 0; id < GGML_TYPE_COUNT; ++id) {
        const char* known = ggml_type_name(static_cast<ggml_type>(id));
        if (known != nullptr && CLI::detail::to_lower(known) == CLI::detail::to_lower(name))
            return static_cast<ggml_type>(id);
    }
    refold::fail(refold::ErrorCode::usage, "requantize", "unknown type '{}'", name);
}

void requantize(const Arguments& a) {
    refold::init_llama();
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = kTypes.at(a.type);
    params.allow_requantize = true;
    params.token_embedding_type = type_of(a.embedding_type);
    params.output_tensor_type = type_of(a.output_type);
    refold::ImportanceMatrix matrix;
    std::vector<llama_model_imatrix_data> entries;
    if (!a.imatrix.empty()) {
        matrix = refold::load_importance_matrix(a.imatrix);
        for (const auto& [name, entry] : matrix.tensors)
            entries.push_back({name.c_str(), entry.mean_squares.data(), entry.mean_squares.size()});
        entries.push_back({nullptr, nullptr, 0});
        params.imatrix = entries.data();
    }
    if (llama_model_quantize(a.input.c_str(), a.output.c_str(), &params) != 0)
        refold::fail(refold::ErrorCode::unsupported, "requantize", "{}", refold::ggml_errors());
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Writes a model in another element type with libllama");
    Arguments a;
    app.add_option("IN", a.input)->required();
    app.add_option("OUT", a.output)->required();
    app.add_option("TYPE", a.type, "As in llama-quantize, in lower case")
        ->required()
        ->check(CLI::IsMember(kTypes));
    app.add_option("--imatrix", a.imatrix, "Importance matrix");
    app.add_option("--embedding-type", a.embedding_type, "Element type of the token embedding");
    app.add_option("--output-type", a.output_type, "Element type of the output matrix");
    CLI11_PARSE(app, argc, argv);
    try {
        requantize(a);
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "refold_requantize: {}\n", error.what());
        return 1;
    }
}
