// Fuzzes the input of training: for any bytes, records are tokenized or refused with refold::Error, a token
// file is read within its bounds or refused, and records of event files are found within their bounds. The
// first byte of an input says what it is: "k" tokens, "e" events, "t" text, else records.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "scratch.h"
#include "target.h"
#include "train/event_file.h"
#include "train/records.h"
#include "train/token_file.h"

namespace {

const std::string kIdentity(64, 'a');

const std::string kRecords[] = {
    "{\"text\": \"one\"}\n{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\"}\n{\"input\": \"i\", "
    "\"output\": \"o\"}\n",
    R"([{"conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A\u00e4"}]},
{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"},
{"role": "user", "content": "V"}, {"role": "assistant", "content": "B"}]}])",
    "Plain text\nof caf\xC3\xA9s.\n\nMore of it.\n"};

std::vector<int32_t> bytes_as_tokens(std::string_view text) { return {text.begin(), text.end()}; }

// A chat template that, for some contents, renders a message differently when more messages follow.
std::string dialogue(std::span<const refold::TrainTokenizer::Message> messages, bool answer_follows) {
    std::string out;
    for (const auto& message : messages) {
        const bool last = &message == &messages.back();
        out += message.role + ":" +
               (last ? message.content : message.content.substr(message.content.size() / 3)) + "\n";
    }
    return out + (answer_follows ? "assistant:" : "");
}

bool takes_records(const std::string& text, const std::string& name) {
    refold::TrainTokenizer tokenizer;
    tokenizer.tokens = tokenizer.template_tokens = bytes_as_tokens;
    tokenizer.before = tokenizer.after = {7};
    tokenizer.dialogue = dialogue;
    bool taken = true;
    for (const bool responses_only : {true, false}) {
        taken &= refold::reads([&] {
            size_t bytes = 0;
            refold::for_records(
                text, name,
                [&](const refold::TrainRecord& record, const refold::RecordLocation& location, size_t size) {
                    bytes += size;
                    for (const auto& document : tokenize(record, tokenizer, responses_only, location))
                        if (document.scored.size() != document.tokens.size()) abort();
                },
                16);
            if (bytes > text.size() + 1) abort();
        });
    }
    return taken;
}

bool takes_tokens(std::string_view bytes) {
    const std::string path = refold::scratch() / "tokens";
    refold::write_bytes(path, bytes);
    return refold::reads([&] {
        const auto tokens = refold::TokenFile::open(path, kIdentity);
        if (!tokens) return;
        for (const int32_t token : tokens->tokens()) refold::use(static_cast<size_t>(token));
        for (const uint8_t scored : tokens->scored()) refold::use(scored);
        if (tokens->tokens().size() != tokens->scored().size()) abort();
    });
}

bool takes_events(std::string_view bytes) {
    size_t records = 0;
    for (; const auto record = refold::first_event(bytes); ++records) bytes.remove_prefix(record->size);
    return records > 0;
}

std::string token_bytes() {
    const std::string path = refold::scratch() / "seed";
    refold::TokenFileWriter writer(path, kIdentity);
    writer.add({{1, 2, 3, 4, 5}, {1, 0, 0, 1, 1}});
    writer.commit();
    return refold::read_bytes(path);
}

constexpr std::string_view kWords[] = {
    "{",    "}",        "[",      "]",    "\"",  ",",  "\n",  "\\",      "null", "true", "text",      "1e400",
    "\xE2", "messages", "output", "from", "gpt", "-1", "\\u", "\\ud800", ":",    " ",    "assistant", "\xff"};

}  // namespace

bool refold::fuzz_one(std::string_view input) {
    if (input.empty()) return false;
    const std::string text(input.substr(1));
    switch (input.front()) {
        case 'k': return takes_tokens(text);
        case 'e': return takes_events(text);
        case 't': return takes_records(text, "x.txt");
        default: return takes_records(text, "x.json");
    }
}

std::vector<std::string> refold::fuzz_seeds() {
    return {"k" + token_bytes(), "e" + event_file_begin(1) + scalar_event(2, 300, {{"loss", 2.5}}),
            "j" + kRecords[0], "j" + kRecords[1], "t" + kRecords[2]};
}
std::span<const std::string_view> refold::fuzz_words() { return kWords; }
