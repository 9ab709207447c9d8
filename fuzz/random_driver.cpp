// Runs a target on random changes of its seeds and of given files, the same ones for the same --seed.
//     refold_fuzz_NAME [--iterations N] [--seed N] [FILE or FOLDER ...]
// With --iterations 0, files run as they are. An input that fails is written to
// $TMPDIR/refold_fuzz_NAME-failed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "mutation.h"
#include "scratch.h"
#include "target.h"

namespace {

namespace fs = std::filesystem;

std::string g_name;     // of this program
std::string g_current;  // the input that is running

void save_current() {
    const fs::path path = fs::temp_directory_path() / (g_name + "-failed");
    refold::write_bytes(path, g_current);
    fprintf(stderr, "%s: input written to %s\n", g_name.c_str(), path.c_str());
}

bool run(std::string input) {
    g_current = std::move(input);
    // A copy of exactly this size, so that reads past the end hit AddressSanitizer's red zone.
    const std::vector<char> exact(g_current.begin(), g_current.end());
    return refold::fuzz_one({exact.data(), exact.size()});
}

struct Arguments {
    uint64_t iterations = 20000, seed = 1;
    std::vector<fs::path> files;

    Arguments(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string argument = argv[i];
            if ((argument == "--iterations" || argument == "--seed") && i + 1 < argc) {
                (argument == "--seed" ? seed : iterations) = strtoull(argv[++i], nullptr, 10);
            } else if (fs::is_directory(argument)) {
                for (const auto& entry : fs::directory_iterator(argument)) files.push_back(entry.path());
            } else {
                files.emplace_back(argument);
            }
        }
        std::ranges::sort(files);
    }
};

}  // namespace

int main(int argc, char** argv) {
    const Arguments arguments(argc, argv);
    g_name = fs::path(argv[0]).filename();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(save_current);
#endif
    uint64_t taken = 0;
    try {
        std::vector<std::string> inputs = refold::fuzz_seeds();
        for (const std::string& input : inputs) {
            if (run(input)) continue;
            fprintf(stderr, "%s: a seed is refused\n", g_name.c_str());
            save_current();
            return 1;
        }
        for (const fs::path& file : arguments.files) {
            inputs.push_back(refold::read_bytes(file));
            run(inputs.back());
        }
        std::mt19937_64 random(arguments.seed);
        const auto any = [&]() -> const std::string& { return inputs[random() % inputs.size()]; };
        for (uint64_t i = 0; i < arguments.iterations && !inputs.empty(); ++i) {
            const std::string& input = any();
            taken += run(refold::mutated(input, any(), refold::fuzz_words(), random)) ? 1 : 0;
        }
    } catch (const std::exception& error) {
        fprintf(stderr, "%s: not allowed to escape: %s\n", g_name.c_str(), error.what());
        save_current();
        return 1;
    }
    printf("%s: %llu inputs, %llu read, the others refused with a clear error\n", g_name.c_str(),
           static_cast<unsigned long long>(arguments.iterations), static_cast<unsigned long long>(taken));
    return 0;
}
