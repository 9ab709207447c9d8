// Runs a target under Clang's libFuzzer, which keeps the changes that reach new code.
//     refold_fuzz_NAME [libFuzzer's options] [FOLDER ...]
//     refold_fuzz_NAME --seeds FOLDER     writes the target's seeds and ends
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>

#include "mutation.h"
#include "scratch.h"
#include "target.h"

// NOLINTBEGIN(readability-identifier-naming): libFuzzer's names
extern "C" {

int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    if (*argc != 3 || strcmp((*argv)[1], "--seeds") != 0) return 0;
    size_t number = 0;
    for (const std::string& seed : refold::fuzz_seeds()) {
        if (!refold::fuzz_one(seed)) {
            fprintf(stderr, "a seed is refused: %s\n", seed.c_str());
            exit(1);
        }
        refold::write_bytes(std::filesystem::path((*argv)[2]) / ("seed-" + std::to_string(number++)), seed);
    }
    exit(0);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    refold::fuzz_one({reinterpret_cast<const char*>(data), size});
    return 0;
}

// Every other change is ours, which knows numbers and words.
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    std::mt19937_64 random(seed);
    if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
    const std::string input(reinterpret_cast<const char*>(data), size);
    const std::string changed = refold::mutated(input, input, refold::fuzz_words(), random);
    const size_t kept = std::min(changed.size(), max_size);
    memcpy(data, changed.data(), kept);
    return kept;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
