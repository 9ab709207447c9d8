// Fuzzes recipes: for any text, a recipe is read or refused with refold::Error, and one that is read can be
// written and read again.
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "compress/recipe.h"
#include "target.h"

namespace {

const std::string kSeeds[] = {
    "model: a\noriginal: dense.gguf\ncalibration:\n  text: [wiki.txt, b]\n  tokens: 32768\n  length: "
    "64\nsteps:\n"
    "  - method: refit\n  - method: direct_share\n    ratio: 0.3\n    seed: 7\n",
    "steps:\n  - {method: quantize, type: q4_0}\n  - method: drop\n    layers: 1,3-5\n",
    "slices:\n  - sources:\n      - model: m\n        layer_range: [0, 4]\n  - sources:\n      - model: m\n"
    "        layer_range: [2, 6]\nmerge_method: passthrough\ndtype: float16\n"};

constexpr std::string_view kWords[] = {
    "steps", "method", "model",  "calibration", ": ",    "\n  - ", "[",      "]",
    "{",     "}",      "&a",     "*a",          "<<: ",  "!!int ", "refine", "train",
    "1e400", "-1",     "0-9999", "\n",          "---\n", "|\n",    ">",      "'",
    "\"",    "# ",     "? ",     "slices",      "ranks", "types",  "auto",   "99999999999"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    return reads([&] {
        const std::string yaml = to_yaml(parse_recipe(std::string(input), "fuzz"));
        bool again = false;
        std::string second;
        again = reads([&] { second = to_yaml(parse_recipe(yaml, "again")); });
        if (!again || second != yaml) abort();
    });
}

std::vector<std::string> refold::fuzz_seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
