#include "tasks/needle.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.h"
#include "tasks/python_random.h"

namespace refold {
namespace {

constexpr const char* kHaystack =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr int64_t kAnswerTokens = 128;

constexpr std::array kAdjectives = {
    "amber", "brave", "calm",   "dusty", "early",   "faint", "gentle", "hollow", "idle",   "jolly", "keen",
    "lucky", "mild",  "narrow", "old",   "proud",   "quiet", "rapid",  "salty",  "tidy",   "upper", "vivid",
    "wide",  "young", "bitter", "crisp", "distant", "eager", "fresh",  "golden", "humble", "inner"};
constexpr std::array kNouns = {"anchor",  "basket",  "candle", "desert", "engine", "forest", "garden",
                               "harbour", "island",  "jacket", "kettle", "ladder", "meadow", "needle",
                               "orchard", "pencil",  "quarry", "ribbon", "saddle", "temple", "umbrella",
                               "valley",  "window",  "yard",   "bridge", "cellar", "dragon", "falcon",
                               "hammer",  "lantern", "mirror", "river"};

int64_t estimate(const std::string& text) {
    // English has about four tokens per three words.
    int64_t words = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const bool space = std::isspace(static_cast<unsigned char>(text[i])) != 0;
        const bool begins = i == 0 || std::isspace(static_cast<unsigned char>(text[i - 1])) != 0;
        words += !space && begins ? 1 : 0;
    }
    return (words * 4 + 2) / 3;
}

struct Needle {
    std::string input, key, number;
};

class Generator {
public:
    explicit Generator(const NeedleOptions& options) : options_(options), random_(options.seed) {
        if (!options_.count_tokens) options_.count_tokens = estimate;
        step_ = options_.length < 4096 ? 5 : 25;
    }

    std::vector<Record> run() {
        const int64_t copies = grow();
        std::vector<Record> records;
        for (int64_t i = 0; i < options_.items; ++i) records.push_back(item(copies, static_cast<size_t>(i)));
        return records;
    }

private:
    // Number of copies of the haystack that fit.
    int64_t grow() {
        int64_t copies = step_, tokens = 0;
        while (tokens + kAnswerTokens < options_.length) {
            const Needle needle = make(copies);
            tokens = options_.count_tokens(needle.input + needle.number);
            if (tokens + kAnswerTokens > options_.length) {
                copies -= step_;
                break;
            }
            copies += step_;
        }
        return std::max<int64_t>(copies, 1);
    }

    Record item(int64_t copies, size_t index) {
        for (; copies > 0; copies -= step_) {
            const Needle needle = make(copies);
            const int64_t length = options_.count_tokens(needle.input) + kAnswerTokens;
            if (length > options_.length) continue;
            return {{{"index", index},
                     {"input", needle.input},
                     {"outputs", {needle.number}},
                     {"length", length},
                     {"max_length", options_.length},
                     {"gen_prefix",
                      fmt::format("The special magic number for {} mentioned in the provided text is",
                                  needle.key)}},
                    index + 1};
        }
        fail(ErrorCode::usage, "task",
             "no needle fits in a length of {} tokens, of which {} are for the answer", options_.length,
             kAnswerTokens);
    }

    Needle make(int64_t copies) {
        Needle needle;
        needle.key = fmt::format("{}-{}", kAdjectives[random_.below(kAdjectives.size())],
                                 kNouns[random_.below(kNouns.size())]);
        needle.number = std::to_string(1'000'000 + random_.below(9'000'000));
        const size_t place = random_.below(static_cast<size_t>(copies));
        needle.input =
            "A special magic number is hidden within the following text. Make sure to memorize it. I will "
            "quiz you about the number afterwards.\n";
        for (size_t i = 0; i < static_cast<size_t>(copies); ++i) {
            if (i == place)
                needle.input += fmt::format("One of the special magic numbers for {} is: {}.\n", needle.key,
                                            needle.number);
            needle.input += kHaystack;
            needle.input += '\n';
        }
        needle.input += fmt::format("What is the special magic number for {} mentioned in the provided text?",
                                    needle.key);
        return needle;
    }

    NeedleOptions options_;
    PythonRandom random_;
    int64_t step_;
};

}  // namespace

std::vector<Record> make_needles(const NeedleOptions& options) {
    if (options.length < 1 || options.length > int64_t{1} << 22)
        fail(ErrorCode::usage, "task", "needles of {} tokens: expected 1 to {}", options.length,
             int64_t{1} << 22);
    return Generator(options).run();
}

}  // namespace refold
