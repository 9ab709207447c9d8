// Fuzzes the data of tasks: for any bytes, items are read or refused with refold::Error - no crash, no
// sanitizer report, no other exception. The first byte of an input says its form and how items are made of
// it.
#include <iterator>
#include <string>
#include <vector>

#include "target.h"
#include "task_words.h"
#include "tasks/dataset.h"

namespace {

using refold::DataSource;
using refold::RecordForm;

struct Seed {
    RecordForm form;
    const char* text;
};

const Seed kSeeds[] = {
    {RecordForm::jsonl,
     "{\"q\": \"Is it [a] thing?\", \"a\": [\"x\", \"y\"], \"n\": 1}\n{\"q\": \"b\", \"a\": [\"z\"], \"n\": "
     "0}\n"},
    {RecordForm::json,
     "{\"a\": {\"x\": {\"q\": \"one\", \"a\": [\"u\"], \"n\": 2}, \"y\": {\"q\": \"two\", \"a\": [], \"n\": "
     "0}}}"},
    {RecordForm::csv, "q,a,n\n\"one, \"\"two\"\"\nthree\",x,1\nfour,y,2\n"},
    {RecordForm::tsv, "q\ta\tn\none\tx\t1\ntwo\ty\t2\n"},
    {RecordForm::hellaswag_text, "Act: One thing. the other\n2\na\nb\nc\nd\nAct: Two.\n0\na\nb\nc\nd\n"},
};

constexpr const char* kFields =
    "{{ strip(capitalize(q)) }}{{ remove_between(q, '[', ']').replace('  ', ' ').split(' ')[:-1] | join(' ') "
    "}}"
    "{{ index(a, 'x') if a | length > 0 else literal('[1]') }}";

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    if (input.empty()) return false;
    const auto choice = static_cast<unsigned char>(input.front());
    DataSource source;
    source.form.form = kSeeds[choice % 8 % std::size(kSeeds)].form;
    if ((choice & 8) != 0) source.form.items = "a";
    if ((choice & 16) != 0) source.form.unfold = {"a"};
    if ((choice & 32) == 0) source.fields = {{"t", kFields}};
    return reads([&] { make_items(source, std::string(input.substr(1)), "fuzz"); });
}

std::vector<std::string> refold::fuzz_seeds() {
    std::vector<std::string> seeds;
    for (size_t i = 0; i < std::size(kSeeds); ++i) {
        for (const size_t options : {0, 8, 32, 40, 48})
            if (std::string seed = static_cast<char>(i + options) + std::string(kSeeds[i].text);
                fuzz_one(seed))
                seeds.push_back(std::move(seed));
    }
    return seeds;
}
std::span<const std::string_view> refold::fuzz_words() { return kTaskWords; }
