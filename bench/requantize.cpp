// Writes a model in another element type with libllama, as a dense model for the benchmarks.
#include <fmt/format.h>
#include <llama.h>

#include <cstring>
#include <map>
#include <string>

#include "io/ggml_log.h"
#include "text/llama_log.h"

int main(int argc, char** argv) {
    const std::map<std::string, llama_ftype> types = {{"f32", LLAMA_FTYPE_ALL_F32},
                                                      {"f16", LLAMA_FTYPE_MOSTLY_F16},
                                                      {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
                                                      {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},
                                                      {"q4_1", LLAMA_FTYPE_MOSTLY_Q4_1}};
    const auto type = argc == 4 ? types.find(argv[3]) : types.end();
    if (type == types.end()) {
        fmt::print(stderr, "usage: refold_requantize IN.gguf OUT.gguf f32|f16|q8_0|q4_0|q4_1\n");
        return 2;
    }
    refold::init_llama();
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = type->second;
    params.allow_requantize = true;
    if (llama_model_quantize(argv[1], argv[2], &params) != 0) {
        fmt::print(stderr, "refold_requantize: {}\n", refold::ggml_errors());
        return 1;
    }
    return 0;
}
