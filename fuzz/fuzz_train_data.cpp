// Fuzzes the input of training: for any bytes, records are tokenized or refused with refold::Error, a token
// file is read within its bounds or refused, and records of event files are found within their bounds.
//     refold_fuzz_train_data [--iterations N] [--seed N]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>

#include "core/error.h"
#include "fuzzing.h"
#include "train/event_file.h"
#include "train/records.h"
#include "train/token_file.h"

namespace {

using refold::Error;

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
        try {
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
        } catch (const Error& error) {
            if (error.code() != refold::ErrorCode::input) throw;
            taken = false;
        }
    }
    return taken;
}

bool takes_tokens(const std::string& bytes, const std::string& path) {
    FILE* file = fopen(path.c_str(), "wb");
    if (file == nullptr || fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() || fclose(file) != 0)
        abort();
    try {
        const auto tokens = refold::TokenFile::open(path, kIdentity);
        if (!tokens) return true;
        int64_t sum = 0;
        for (const int32_t token : tokens->tokens()) sum += token;
        for (const uint8_t scored : tokens->scored()) sum += scored;
        volatile const int64_t sink = sum;
        static_cast<void>(sink);
        return tokens->tokens().size() == tokens->scored().size();
    } catch (const Error& error) {
        if (error.code() != refold::ErrorCode::input) throw;
        return false;
    }
}

bool takes_events(std::string_view bytes) {
    size_t records = 0;
    for (; const auto record = refold::first_event(bytes); ++records) bytes.remove_prefix(record->size);
    return records > 0;
}

std::string token_bytes(const std::string& path) {
    refold::TokenFileWriter writer(path, kIdentity);
    writer.add({{1, 2, 3, 4, 5}, {1, 0, 0, 1, 1}});
    writer.commit();
    const refold::MappedFile file(path);
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

constexpr const char* kPieces[] = {
    "{",    "}",        "[",      "]",    "\"",  ",",  "\n",  "\\",      "null", "true", "text",      "1e400",
    "\xE2", "messages", "output", "from", "gpt", "-1", "\\u", "\\ud800", ":",    " ",    "assistant", "\xff"};

}  // namespace

int main(int argc, char** argv) {
    const refold::FuzzArguments arguments(argc, argv, 20000);
    const std::string path =
        (std::filesystem::temp_directory_path() / ("refold-fuzz-" + std::to_string(getpid()))).string();
    std::mt19937_64 random(arguments.seed);
    std::string current;
    uint64_t taken = 0;
    int failed = 0;
    try {
        const std::string tokens = token_bytes(path);
        const std::string events =
            refold::event_file_begin(1) + refold::scalar_event(2, 300, {{"loss", 2.5}});
        const auto run = [&](uint64_t kind, const std::string& bytes) {
            current = bytes;
            if (kind == 0) return takes_tokens(bytes, path);
            if (kind == 1) return takes_events(bytes);
            return takes_records(bytes, kind == 4 ? "x.txt" : "x.json");
        };
        const std::string* const seeds[] = {&tokens, &events, &kRecords[0], &kRecords[1], &kRecords[2]};
        for (uint64_t kind = 0; kind < std::size(seeds); ++kind) {
            if (!run(kind, *seeds[kind])) {
                fprintf(stderr, "refold_fuzz_train_data: seed %d is refused\n", static_cast<int>(kind));
                failed = 1;
            }
        }
        for (uint64_t i = 0; i < arguments.iterations; ++i) {
            // Less often, because writing files is slow.
            const uint64_t kind = random() % 16 == 0 ? 0 : 1 + random() % 4;
            taken += run(kind, refold::mutated(*seeds[kind], kPieces, random)) ? 1 : 0;
        }
    } catch (const std::exception& error) {
        fprintf(stderr, "refold_fuzz_train_data: %s\nfor: %s\n", error.what(), current.c_str());
        failed = 1;
    }
    unlink(path.c_str());
    printf("refold_fuzz_train_data: %llu of %llu read, the others refused\n",
           static_cast<unsigned long long>(taken), static_cast<unsigned long long>(arguments.iterations));
    return failed;
}
