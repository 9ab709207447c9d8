// Fuzzes evaluation data: for any bytes, documents, samples and exit trajectories are read or refused with
// refold::Error, and what is read can be compared.
//     refold_fuzz_eval [--iterations N] [--seed N]
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>

#include "core/error.h"
#include "eval/compare.h"
#include "eval/documents.h"
#include "eval/samples.h"
#include "exit/trajectory.h"
#include "fuzzing.h"

namespace {

using refold::Error;

const std::string kSeeds[] = {
    R"({"text": "a ( b ) , c", "id": [1, {"x": null}]}
{"page": " = T = \n it 's \" q \" @-@ 5"}
)",
    " \n = One = \n a ' b ' \n = = Part = = \n [ x ] { y } \n = Two = \n caf\xC3\xA9\xC2\xA0\xE3\x80\x80z \n",
    R"({"doc_id": 0, "doc_hash": "a", "task": "t", "acc": 1.0, "acc_norm": 0, "perplexity": [-3.5, 2]}
{"doc_id": 1, "metrics": ["acc", "f1"], "acc": true, "f1": 0.25, "filter": "none"}
)",
    R"({"format":"refold exits","version":1,"loops":3,"rule":"oracle"}
{"exits":[1,3,2]}
{"exits":[]}
)"};

volatile size_t g_sink = 0;

// True if one of the readers accepts it.
bool run_one(const std::string& text) {
    g_sink = g_sink + refold::wikitext_rows_joined(text).size();
    bool taken = false;
    try {
        for (const auto& document : refold::split_documents(text, "fuzz").documents) {
            if (document.words < 1 || document.bytes < 0) abort();
            g_sink = g_sink + document.text.size();
        }
        taken = true;
    } catch (const Error& error) {
        if (error.code() != refold::ErrorCode::input) throw;
    }
    try {
        const auto samples = refold::parse_samples(text, "fuzz");
        for (const auto& row : refold::compare_samples(samples, samples, {.resamples = 3}).rows)
            if (row.difference() != 0 && row.difference() == row.difference()) abort();
        taken = true;
    } catch (const Error& error) {
        if (error.code() != refold::ErrorCode::input) throw;
    }
    try {
        for (const auto& exits : refold::parse_exit_trajectory(text, "fuzz").sequences)
            g_sink = g_sink + exits.size();
        taken = true;
    } catch (const Error& error) {
        if (error.code() != refold::ErrorCode::input) throw;
    }
    return taken;
}

constexpr const char* kPieces[] = {
    "{",    "}",    "[",      "]",      "\"",   ",",    "\n", " = ", "1e400", "-1",
    "null", "true", "doc_id", "1e-320", "\xE2", "\xC2", "( ", " )",  "/' 7/", "18446744073709551615"};

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 20000);
    std::mt19937_64 random(arguments.seed);
    std::string current;
    uint64_t taken = 0;
    try {
        for (const std::string& seed : kSeeds) {
            if (!run_one(current = seed)) {
                fprintf(stderr, "refold_fuzz_eval: a seed is refused: %s\n", seed.c_str());
                return 1;
            }
        }
        for (uint64_t i = 0; i < arguments.iterations; ++i)
            taken += run_one(current = refold::mutated(kSeeds[random() % std::size(kSeeds)], kPieces, random))
                         ? 1
                         : 0;
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_eval: %s\nfor: %s\n", error.what(), current.c_str());
        return 1;
    }
    printf("refold_fuzz_eval: %llu of %llu texts read, the others refused\n",
           static_cast<unsigned long long>(taken), static_cast<unsigned long long>(arguments.iterations));
    return 0;
}
