// Fuzzes importance matrices: for any bytes, one whose numbers are finite is read, or they are refused with
// refold::Error.
//     refold_fuzz_imatrix [--iterations N] [--seed N]
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "compress/quantization/importance_matrix.h"
#include "core/error.h"
#include "fuzzing.h"

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
    const std::string path =
        (std::filesystem::temp_directory_path() / ("refold-fuzz-imatrix-" + std::to_string(getpid())))
            .string();
    save_importance_matrix(matrix, path, true);
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    std::filesystem::remove(path);
    return bytes;
}

bool run_one(const std::string& text) {
    // A copy of exactly this size, so that reads past the end hit AddressSanitizer's red zone.
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    const std::vector<std::byte> bytes(first, first + text.size());
    try {
        for (const auto& [name, entry] : refold::parse_importance_matrix(bytes, "fuzz").tensors) {
            if (entry.count < 0 || entry.mean_squares.empty()) abort();
            for (const float value : entry.mean_squares)
                if (!std::isfinite(value) || value < 0) abort();
        }
        return true;
    } catch (const refold::Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
}

constexpr const char* kPieces[] = {"GGUF",     ".in_sum2",           ".counts",
                                   "imatrix",  "\xFF\xFF\xFF\x7F",   "\x01\x01\x01\x01",
                                   "\x7F\xC0", "blk.0.ffn_up.weight"};

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 20000);
    std::mt19937_64 random(arguments.seed);
    uint64_t taken = 0;
    try {
        const std::string seeds[] = {binary_seed(), gguf_seed()};
        for (const std::string& seed : seeds) {
            if (!run_one(seed)) {
                fprintf(stderr, "refold_fuzz_imatrix: a seed is refused\n");
                return 1;
            }
        }
        for (uint64_t i = 0; i < arguments.iterations; ++i)
            taken += run_one(refold::mutated(seeds[random() % std::size(seeds)], kPieces, random)) ? 1 : 0;
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_imatrix: %s\n", error.what());
        return 1;
    }
    printf("refold_fuzz_imatrix: %llu of %llu files read, the others refused\n",
           static_cast<unsigned long long>(taken), static_cast<unsigned long long>(arguments.iterations));
    return 0;
}
