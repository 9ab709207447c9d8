// Shared by the fuzz programs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace refold {

// [--iterations N] [--seed N] [FILE ...]
struct FuzzArguments {
    uint64_t iterations, seed = 1;
    std::vector<std::string> files;

    FuzzArguments(int argc, char** argv, uint64_t default_iterations) : iterations(default_iterations) {
        for (int i = 1; i < argc; ++i) {
            const std::string argument = argv[i];
            if ((argument == "--iterations" || argument == "--seed") && i + 1 < argc)
                (argument == "--seed" ? seed : iterations) = strtoull(argv[++i], nullptr, 10);
            else
                files.push_back(argument);
        }
    }
};

// The text with one to four changes: a piece inserted, removed or repeated, or a bit flipped.
inline std::string mutated(const std::string& seed, std::span<const char* const> pieces,
                           std::mt19937_64& random) {
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    std::string out = seed;
    for (size_t i = 0, count = 1 + below(4); i < count; ++i) {
        const size_t at = below(out.size() + 1);
        switch (below(4)) {
            case 0: out.insert(at, pieces[below(pieces.size())]); break;
            case 1: out.erase(at, below(12)); break;
            case 2: out.insert(at, out.substr(below(out.size() + 1), below(60))); break;
            default:
                if (at < out.size()) out[at] = static_cast<char>(out[at] ^ (1 << below(8)));
        }
    }
    return out;
}

}  // namespace refold
