// Reads records of training text (plain text, instructions, dialogues) and tokenizes them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/files.h"

namespace refold {

// The tokens of a document. `scored` marks the tokens whose prediction counts in the loss, such as the
// responses of a dialogue; empty: all.
struct TrainDocument {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> scored;
};

// Tokenizes text and dialogues by the tokenizer and chat template of a model (train/text/train_tokenizer.h).
struct TrainTokenizer {
    std::string identity;  // of vocabulary and template; a token file belongs to one identity
    std::function<std::vector<int32_t>(std::string_view text)> tokens;  // without special tokens
    std::vector<int32_t> before, after;  // tokens around every document: BOS and EOS, if the model uses them
    struct Message {
        std::string role, content;
    };
    // Renders a dialogue by the template; with `answer_follows` up to the beginning of the next answer. Empty
    // when the model has no template.
    std::function<std::string(std::span<const Message> dialogue, bool answer_follows)> dialogue;
    // Tokenizes a rendered text, in which special tokens count as such.
    std::function<std::vector<int32_t>(std::string_view text)> template_tokens;
};

// A document of plain text, or a part of a long one.
struct TextRecord {
    std::string text;
    bool begins = true, ends = true;
};
struct InstructionRecord {
    std::string prompt, answer;
};
using DialogueRecord = std::vector<TrainTokenizer::Message>;
using TrainRecord = std::variant<TextRecord, InstructionRecord, DialogueRecord>;

// The location of a record for error messages: "'data.jsonl', line 3".
struct RecordLocation {
    std::string file;
    size_t line = 0;  // 0: the file is one document
    std::string str() const;
};

// .json and .jsonl files hold records: one JSON object per line, or one array of objects. Every other file is
// a document of plain text.
bool holds_records(const std::string& path);

// Calls use(record, location, bytes) for every record; `bytes` is the number of bytes that the record takes
// in the file. Cuts plain text into parts of about `part` bytes at an empty line, the end of a line or a
// space. Throws Error(input) naming file and line for invalid UTF-8, invalid JSON and unknown kinds of
// records.
using UseRecord =
    std::function<void(const TrainRecord& record, const RecordLocation& location, size_t bytes)>;
void for_records(std::string_view text, const std::string& path, const UseRecord& use, size_t part = 4 << 20);

// Tokenizes a record, usually into one document. Some templates render earlier turns differently later on
// (they drop reasoning); a dialogue then gives one document per answer, as the model sees it when it answers.
// With `responses_only` only the answers of instructions and dialogues are scored, including the tokens that
// end them. BOS is never scored. Throws Error(input) naming the location for a dialogue without an answer or
// one that the template rejects, Error(unsupported) for a dialogue when the model has no template.
std::vector<TrainDocument> tokenize(const TrainRecord& record, const TrainTokenizer& tokenizer,
                                    bool responses_only, const RecordLocation& location);

}  // namespace refold
