// Fuzzes importance matrices: for any bytes, one whose numbers are finite is read, or they are refused with
// refold::Error.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "compress/quantization/importance_matrix.h"
#include "scratch.h"
#include "target.h"

namespace {

void number(std::string& out, int32_t value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string binary_seed() {
    std::string out;
    number(out, 2);
    for (const char* name : {"blk.0.ffn_up.weight", "output.weight"}) {
        number(out, static_cast<int32_t>(strlen(name)));
        out += name;
        number(out, 4);
        number(out, 3);
        const float values[] = {1, 2.5F, 0};
        out.append(reinterpret_cast<const char*>(values), sizeof(values));
    }
    number(out, 4);
    number(out, 5);
    return out + "a.txt";
}

std::string gguf_seed() {
    refold::ImportanceMatrix matrix;
    matrix.tensors["blk.0.ffn_up.weight"] = {{1, 2, 3}, 8};
    matrix.tensors["output.weight"] = {{4, 0}, 16};
    matrix.datasets = {"a.txt"};
    const std::string path = refold::scratch() / "seed";
    save_importance_matrix(matrix, path, true);
    return refold::read_bytes(path);
}

constexpr std::string_view kWords[] = {"GGUF",     ".in_sum2",           ".counts",
                                       "imatrix",  "\xFF\xFF\xFF\x7F",   "\x01\x01\x01\x01",
                                       "\x7F\xC0", "blk.0.ffn_up.weight"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    return reads([&] {
        const auto matrix = parse_importance_matrix(std::as_bytes(std::span(input)), "fuzz");
        for (const auto& [name, entry] : matrix.tensors) {
            if (entry.count < 0 || entry.mean_squares.empty()) abort();
            for (const float value : entry.mean_squares)
                if (!std::isfinite(value) || value < 0) abort();
        }
    });
}

std::vector<std::string> refold::fuzz_seeds() { return {binary_seed(), gguf_seed()}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
