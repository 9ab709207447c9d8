// Fuzzes task files and their data: for any bytes, reading returns items or throws refold::Error - no crash,
// no sanitizer report, no other exception.
//     refold_fuzz_tasks [--iterations N] [--seed N]
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "fuzzing.h"
#include "tasks/builtin.h"
#include "tasks/dataset.h"
#include "text/jinja.h"

namespace {

using refold::DataSource;
using refold::Error;
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

class Mutator {
public:
    explicit Mutator(uint64_t number) : random_(number) {}

    size_t below(size_t n) { return static_cast<size_t>(random_() % n); }

    std::string next(const std::string& seed, const std::string& other) {
        std::string out = seed;
        for (size_t i = 0, count = 1 + below(6) / 3; i < count && !out.empty(); ++i) change(out, other);
        return out;
    }

private:
    void change(std::string& text, const std::string& other) {
        static const char* const pieces[] = {
            "{",       "}",        "[",  "]",  "\"", "\n", ",",     "\t",        "\\",
            "\xff",    "{{",       "}}", "{%", "0",  "-1", "1e999", "null",      "''",
            "|",       ".",        ":",  "&a", "*a", "(",  "!!",    "<subject>", "99999999999999999999",
            " index(", "literal(", "\r"};
        const size_t at = below(text.size());
        switch (below(5)) {
            case 0: text[at] ^= static_cast<char>(1 << below(7)); break;
            case 1: text.erase(at, 1 + below(8)); break;
            case 2: text.insert(at, pieces[below(std::size(pieces))]); break;
            case 3: text.insert(at, text.substr(below(text.size()), below(40))); break;
            default:
                if (!other.empty()) text.replace(at, below(20), other.substr(below(other.size()), below(60)));
        }
    }

    std::mt19937_64 random_;
};

// True if `action` succeeds, false if it throws refold::Error; other exceptions pass.
template <typename Action>
bool accepts(Action&& action) {
    try {
        action();
        return true;
    } catch (const Error& error) {
        if (error.code() == refold::ErrorCode::internal) throw;
        return false;
    }
}

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 4000);
    uint64_t accepted = 0;
    std::string current;
    try {
        Mutator mutator(arguments.seed);
        // Long lists of subjects would get all of the changes.
        std::vector<std::string> files;
        for (const auto& file : refold::builtin_task_files()) {
            if (file.text.size() < 4000) files.emplace_back(file.text);
        }
        const std::string fields =
            "{{ strip(capitalize(q)) }}{{ remove_between(q, '[', ']').replace('  ', ' ').split(' ')[:-1] | "
            "join(' ') }}"
            "{{ index(a, 'x') if a | length > 0 else literal('[1]') }}";
        for (uint64_t i = 0; i < arguments.iterations; ++i) {
            current = mutator.next(files[mutator.below(files.size())], files[mutator.below(files.size())]);
            accepted += accepts([&] { refold::parse_task_file(current, "fuzz"); });

            const Seed& seed = kSeeds[mutator.below(std::size(kSeeds))];
            DataSource source;
            source.form.form = seed.form;
            if (mutator.below(2) == 0) source.form.items = "a";
            if (mutator.below(4) == 0) source.form.unfold = {"a"};
            if (mutator.below(2) == 0) source.fields = {{"t", fields}};
            current = mutator.next(seed.text, kSeeds[mutator.below(std::size(kSeeds))].text);
            accepted += accepts([&] { refold::make_items(source, current, "fuzz"); });

            current = mutator.next(fields, "{% for x in a %}{{ x }}{% endfor %}{{ {'a': [1, 2.5]} }}");
            const nlohmann::ordered_json item = {{"q", "Is it?"}, {"a", {"x"}}};
            accepted += accepts([&] { refold::JinjaTemplate(current).evaluate(item); });
        }
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_tasks: not allowed to escape: %s\ninput: %s\n", error.what(),
                current.c_str());
        return 1;
    }
    printf("refold_fuzz_tasks: %llu inputs, %llu accepted, the others refused with a clear error\n",
           static_cast<unsigned long long>(3 * arguments.iterations),
           static_cast<unsigned long long>(accepted));
    return 0;
}
