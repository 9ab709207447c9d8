// Records of training text - plain text, instructions, dialogues - and how they become tokens.
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

// A document's tokens; `scored` says which of them count in the loss when they are predicted (the responses
// of a dialogue), empty: all.
struct TrainDocument {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> scored;
};

// Turns text and dialogues into tokens: the tokenizer and chat template of a model (cli/train_tokenizer.h).
struct TrainTokenizer {
    std::string identity;  // of the vocabulary and template: tokens of another one are not taken for these
    std::function<std::vector<int32_t>(std::string_view text)> tokens;  // without special tokens
    std::vector<int32_t> before, behind;  // of every document: BOS, EOS, where the model uses them
    struct Message {
        std::string role, content;
    };
    // The dialogue as the template writes it; with `answer_follows` up to where the next answer begins. Empty
    // where the model has no template.
    std::function<std::string(std::span<const Message> dialogue, bool answer_follows)> dialogue;
    // Tokens of a text that the template wrote: special tokens are what they say.
    std::function<std::vector<int32_t>(std::string_view text)> template_tokens;
};

// A document of plain text; a long one comes in parts.
struct TextRecord {
    std::string text;
    bool begins = true, ends = true;
};
struct InstructionRecord {
    std::string prompt, answer;
};
using DialogueRecord = std::vector<TrainTokenizer::Message>;
using TrainRecord = std::variant<TextRecord, InstructionRecord, DialogueRecord>;

// Where a record stands, for errors: "'data.jsonl', line 3".
struct RecordPlace {
    std::string file;
    size_t line = 0;  // 0: the file is one document
    std::string str() const;
};

// .json and .jsonl files hold records: one JSON object per line, or one array of them. Every other file is a
// document of plain text.
bool holds_records(const std::string& path);

// Calls use(record, place, bytes) for every record, where `bytes` of the file were read for it; plain text is
// cut into parts of about `part` bytes at an empty line, the end of a line or a space. Throws Error(input)
// naming file and line for what is not UTF-8, no JSON or no known kind of record.
using UseRecord = std::function<void(const TrainRecord& record, const RecordPlace& place, size_t bytes)>;
void for_records(std::string_view text, const std::string& path, const UseRecord& use, size_t part = 4 << 20);

// Usually one document. Of a dialogue whose template does not write the same beginning however the dialogue
// goes on (some leave out former turns' reasoning) it is one per answer, as the model sees it when it
// answers. With `responses_only` the answers of instructions and dialogues are scored, with the tokens that
// end them; BOS never is. Throws Error(input) naming the place for a dialogue without an answer or one that
// the template refuses, Error(unsupported) for a dialogue where the model has no template.
std::vector<TrainDocument> tokenise(const TrainRecord& record, const TrainTokenizer& tokenizer,
                                    bool responses_only, const RecordPlace& place);

}  // namespace refold
