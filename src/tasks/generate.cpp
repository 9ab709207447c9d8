#include "tasks/generate.h"

#include <algorithm>

#include "core/interrupt.h"
#include "tasks/prompt_reader.h"
#include "tasks/python_text.h"

namespace refold {
namespace {

// Sequences that are continued at a time: beyond that a step gains little.
constexpr size_t kSequences = 64;

// A prompt that has been read.
struct Writing {
    size_t prompt;
    SharedSequences::Sequence* sequence;
    std::vector<int32_t> tokens;
    std::string text;
};

class Generator {
public:
    Generator(BatchEngine& engine, const Tokenizer& tokenizer, const GenerationSettings& settings)
        : engine_(engine), tokenizer_(tokenizer), settings_(settings) {}

    // `generated` is called with the prompt's number.
    void run(const std::vector<PromptReader::Tokens>& prompts, const Generated& generated) {
        const auto n_vocab = static_cast<size_t>(engine_.n_vocab());
        const size_t most = std::min(
            {kSequences, logits_of_step(engine_.n_vocab()), static_cast<size_t>(engine_.max_rows())});
        PromptReader reader(engine_, prompts, static_cast<size_t>(settings_.max_tokens));
        while (!reader.done() || !writing_.empty()) {
            check_interrupt();
            std::vector<BatchRow> rows;
            for (Writing& w : writing_) {
                rows.push_back({.sequence = w.sequence->id,
                                .position = static_cast<int64_t>(w.sequence->done++),
                                .token = w.tokens.back(),
                                .logits = true});
            }
            const size_t free = most - writing_.size();
            const auto parts = reader.fill(rows, {free, free}, [&](size_t prompt, size_t token) {
                return token + 1 == prompts[prompt].size();
            });
            const auto logits = engine_.step(rows);
            reader.advance(parts);
            for (const auto& part : parts)
                if (part.ends) writing_.push_back({part.prompt, part.sequence, {}, {}});
            size_t row = 0;
            std::erase_if(writing_, [&](Writing& w) {
                if (goes_on(w, likeliest(logits.subspan(n_vocab * row++, n_vocab)))) return false;
                generated(w.prompt, before_stops(std::move(w.text), settings_.until));
                reader.end(*w.sequence);
                return true;
            });
        }
    }

private:
    // Takes the next token.
    bool goes_on(Writing& w, int32_t token) const {
        if (tokenizer_.is_end_of_generation(token)) return false;
        w.tokens.push_back(token);
        w.text = valid_utf8(tokenizer_.decode(w.tokens, false));
        return before_stops(w.text, settings_.until).size() == w.text.size() &&
               static_cast<int64_t>(w.tokens.size()) < settings_.max_tokens;
    }

    BatchEngine& engine_;
    const Tokenizer& tokenizer_;
    const GenerationSettings& settings_;
    std::vector<Writing> writing_;
};

}  // namespace

std::string before_stops(std::string text, std::span<const std::string> until) {
    for (const std::string& stop : until)
        if (!stop.empty()) text.resize(std::min(text.size(), text.find(stop)));
    return text;
}

void generate_until(BatchEngine& engine, const Tokenizer& tokenizer, Requests requests,
                    const GenerationSettings& settings, const Generated& generated) {
    std::vector<PromptReader::Tokens> prompts(requests.size());
    std::transform(requests.begin(), requests.end(), prompts.begin(),
                   [](const Request* r) { return PromptReader::Tokens(r->tokens); });
    const std::vector<size_t> order = PromptReader::order(prompts);
    std::vector<PromptReader::Tokens> ordered;
    for (const size_t index : order) ordered.push_back(prompts[index]);
    Generator(engine, tokenizer, settings).run(ordered, [&](size_t prompt, const std::string& text) {
        generated(order[prompt], text);
    });
}

}  // namespace refold
