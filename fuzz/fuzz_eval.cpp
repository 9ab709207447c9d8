// Fuzzes evaluation data: for any bytes, documents, samples and exit trajectories are read or refused with
// refold::Error, and what is read can be compared.
#include <cstdlib>
#include <iterator>
#include <string>

#include "eval/compare.h"
#include "eval/documents.h"
#include "eval/samples.h"
#include "exit/trajectory.h"
#include "target.h"

namespace {

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

constexpr std::string_view kWords[] = {
    "{",    "}",    "[",      "]",      "\"",   ",",    "\n", " = ", "1e400", "-1",
    "null", "true", "doc_id", "1e-320", "\xE2", "\xC2", "( ", " )",  "/' 7/", "18446744073709551615"};

}  // namespace

// True if one of the readers takes it.
bool refold::fuzz_one(std::string_view input) {
    const std::string text(input);
    refold::use(refold::wikitext_rows_joined(text).size());
    bool taken = false;
    taken |= refold::reads([&] {
        for (const auto& document : refold::split_documents(text, "fuzz").documents) {
            if (document.words < 1 || document.bytes < 0) abort();
            refold::use(document.text.size());
        }
    });
    taken |= refold::reads([&] {
        const auto samples = refold::parse_samples(text, "fuzz");
        for (const auto& row : refold::compare_samples(samples, samples, {.resamples = 3}).rows)
            if (row.difference() != 0 && row.difference() == row.difference()) abort();
    });
    taken |= refold::reads([&] {
        for (const auto& exits : refold::parse_exit_trajectory(text, "fuzz").sequences)
            refold::use(exits.size());
    });
    return taken;
}

std::vector<std::string> refold::fuzz_seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
