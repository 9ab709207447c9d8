#include "tasks/needle.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "core/text.h"
#include "tasks/python_random.h"
#include "tasks/python_text.h"

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

// The names of values in sentences.
const char* plural(NeedleText values) {
    switch (values) {
        case NeedleText::words: return "words";
        case NeedleText::numbers: return "numbers";
        case NeedleText::uuids: return "uuids";
    }
    return "";
}

// Ends of sentences: a full stop, exclamation or question mark, perhaps closed quotes or brackets, and a
// space before a letter that is not small.
std::vector<std::string> sentences_of(const std::string& text) {
    std::vector<std::string> out;
    size_t begin = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '.' && text[i] != '!' && text[i] != '?') continue;
        size_t end = i + 1;
        while (end < text.size() && std::string_view("\"')]").find(text[end]) != std::string_view::npos)
            ++end;
        if (end + 1 >= text.size() || text[end] != ' ' ||
            std::islower(static_cast<unsigned char>(text[end + 1])) != 0)
            continue;
        out.push_back(text.substr(begin, end - begin));
        begin = end + 1;
        i = end;
    }
    if (begin < text.size()) out.push_back(text.substr(begin));
    return out;
}

struct Needle {
    std::string input, query;
    std::vector<std::string> answers;
};

class NeedleGenerator {
public:
    explicit NeedleGenerator(const NeedleOptions& options)
        : options_(options), kind_(options.kind), random_(options.seed) {
        kind_.needles = std::max(kind_.needles, kind_.asked);
        if (!options_.count_tokens) options_.count_tokens = estimate;
        for (const std::string_view word : split_words(options_.text)) words_.emplace_back(word);
        if (kind_.haystack == Haystack::text && words_.empty())
            fail(ErrorCode::input, "task", "the text around the needles is empty");
        step_ = kind_.haystack == Haystack::text ? 500 : options_.length < 4096 ? 5 : 25;
    }

    std::vector<Record> run() {
        const int64_t amount = grow();
        std::vector<Record> records;
        for (int64_t i = 0; i < options_.items; ++i) records.push_back(item(amount, static_cast<size_t>(i)));
        return records;
    }

private:
    bool single() const { return kind_.asked * kind_.values_per_key == 1; }

    // Copies, words or needles of the haystack that fit.
    int64_t grow() {
        int64_t amount = step_, tokens = 0;
        while (tokens + kAnswerTokens < options_.length) {
            const Needle needle = make(amount);
            tokens = options_.count_tokens(needle.input + join(needle.answers, " "));
            if (tokens + kAnswerTokens > options_.length) {
                amount -= step_;
                break;
            }
            const auto all = static_cast<int64_t>(words_.size());
            if (kind_.haystack == Haystack::text && amount > all) return all;
            amount += step_;
        }
        return std::max<int64_t>(amount, 1);
    }

    Record item(int64_t amount, size_t index) {
        while (true) {
            const Needle needle = make(amount);
            const int64_t length = options_.count_tokens(needle.input) + kAnswerTokens;
            if (length <= options_.length) {
                const std::string values = plural(kind_.values);
                const std::string prefix =
                    single() ? fmt::format("The special magic {} for {} mentioned in the provided text is",
                                           values.substr(0, values.size() - 1), needle.query)
                             : fmt::format("The special magic {} for {} mentioned in the provided text are",
                                           values, needle.query);
                return {{{"index", index},
                         {"input", needle.input},
                         {"outputs", needle.answers},
                         {"length", length},
                         {"max_length", options_.length},
                         {"gen_prefix", prefix}},
                        index + 1};
            }
            if (amount <= 1) break;
            amount = std::max<int64_t>(1, amount - step_);
        }
        fail(ErrorCode::usage, "task",
             "no needle fits in a length of {} tokens, of which {} are for the answer", options_.length,
             kAnswerTokens);
    }

    std::string random_text(NeedleText kind) {
        if (kind == NeedleText::numbers) return std::to_string(1'000'000 + random_.below(9'000'000));
        if (kind == NeedleText::words)
            return fmt::format("{}-{}", kAdjectives[random_.below(kAdjectives.size())],
                               kNouns[random_.below(kNouns.size())]);
        // uuid.UUID(int=getrandbits(128), version=4)
        uint64_t low = random_.bits(32), high = 0;
        low |= uint64_t{random_.bits(32)} << 32U;
        high = random_.bits(32);
        high |= uint64_t{random_.bits(32)} << 32U;
        low = (low & ~(uint64_t{0xC000} << 48U)) | uint64_t{0x8000} << 48U;
        high = (high & ~uint64_t{0xF000}) | 0x4000U;
        return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32U, high >> 16U & 0xFFFFU,
                           high & 0xFFFFU, low >> 48U, low & 0xFFFFFFFFFFFFU);
    }

    std::string sentence(const std::string& key, const std::string& value) const {
        return fmt::format("One of the special magic {} for {} is: {}.", plural(kind_.values), key, value);
    }

    Needle make(int64_t amount) {
        std::vector<std::string> keys, sentences;
        std::vector<std::vector<std::string>> values;
        for (int64_t k = 0; k < kind_.needles; ++k) {
            keys.push_back(random_text(kind_.keys));
            auto& own = values.emplace_back();
            for (int64_t v = 0; v < kind_.values_per_key; ++v) {
                own.push_back(random_text(kind_.values));
                sentences.push_back(sentence(keys.back(), own.back()));
            }
        }
        PythonRandom order(options_.seed);  // the same in every item, as in RULER
        for (size_t i = sentences.size() - 1; i > 0; --i)
            std::swap(sentences[i], sentences[order.below(i + 1)]);
        const std::string context =
            kind_.haystack == Haystack::text ? in_text(amount, sentences) : in_lines(amount, sentences);

        Needle needle;
        std::vector<std::string> queries;
        for (const size_t i : random_.sample(keys.size(), static_cast<size_t>(kind_.asked))) {
            queries.push_back(keys[i]);
            needle.answers.insert(needle.answers.end(), values[i].begin(), values[i].end());
        }
        needle.query = queries.back();
        if (queries.size() > 1) {
            queries.pop_back();
            needle.query = join(queries, ", ") + ", and " + needle.query;
        }
        std::string name = plural(kind_.values);
        if (single()) name.pop_back();
        needle.input = fmt::format(
            "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will quiz "
            "you about the {} afterwards.\n{}\nWhat {} the special magic {} for {} mentioned in the provided "
            "text?",
            single() ? "A" : "Some", name, single() ? "is" : "are", name, context,
            single() ? "is" : "are all", name, needle.query);
        return needle;
    }

    // Needles at some of forty depths between the sentences of the text's first words.
    std::string in_text(int64_t words, const std::vector<std::string>& needles) {
        constexpr size_t kDepths = 40;
        const auto count = std::min(static_cast<size_t>(words), words_.size());
        const auto sentences = sentences_of(join(
            std::vector<std::string>(words_.begin(), words_.begin() + static_cast<ptrdiff_t>(count)), " "));
        std::vector<size_t> places;
        for (const size_t depth : random_.sample(kDepths, needles.size())) {
            const double percent = std::nearbyint(100.0 * static_cast<double>(depth) / (kDepths - 1));
            places.push_back(static_cast<size_t>(static_cast<double>(sentences.size()) * (percent / 100)));
        }
        std::sort(places.begin(), places.end());
        std::vector<std::string> parts;
        for (size_t i = 0, next = 0; i <= sentences.size(); ++i) {
            for (; next < places.size() && places[next] == i; ++next) parts.push_back(needles[next]);
            if (i < sentences.size()) parts.push_back(sentences[i]);
        }
        return join(parts, " ");
    }

    // Needles before some of the lines.
    std::string in_lines(int64_t count, const std::vector<std::string>& needles) {
        std::vector<std::string> lines;
        for (int64_t i = 0; i < count; ++i) {
            if (kind_.haystack == Haystack::repeat) {
                lines.emplace_back(kHaystack);
            } else {
                const std::string key = random_text(kind_.keys);
                lines.push_back(sentence(key, random_text(kind_.values)));
            }
        }
        // RULER wants a line for every needle.
        const size_t places = std::max(lines.size(), needles.size());
        std::vector<size_t> at = random_.sample(places, needles.size());
        std::sort(at.rbegin(), at.rend());
        for (size_t n = 0; n < needles.size(); ++n)
            lines.insert(lines.begin() + static_cast<ptrdiff_t>(std::min(at[n], lines.size())), needles[n]);
        return join(lines, "\n");
    }

    NeedleOptions options_;
    NeedleKind kind_;
    PythonRandom random_;
    std::vector<std::string> words_;  // of the text
    int64_t step_;
};

}  // namespace

std::vector<Record> make_needles(const NeedleOptions& options) {
    if (options.length < 1 || options.length > int64_t{1} << 22)
        fail(ErrorCode::usage, "task", "needles of {} tokens: expected 1 to {}", options.length,
             int64_t{1} << 22);
    return NeedleGenerator(options).run();
}

}  // namespace refold
