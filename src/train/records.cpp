#include "train/records.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/text.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Message = TrainTokenizer::Message;

constexpr const char* kRecords = "training data";

template <typename... Args>
[[noreturn]] void bad(const RecordLocation& location, fmt::format_string<Args...> format, Args&&... args) {
    fail(ErrorCode::input, kRecords, "{}: {}", location.str(),
         fmt::format(format, std::forward<Args>(args)...));
}

// The prompts of Stanford Alpaca, which UniAttn and LLM-Pruner train with. The last one is UniAttn's, for
// records without an instruction.
constexpr const char* kWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:";
constexpr const char* kWithoutInput =
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n### Response:";
constexpr const char* kInputOnly = "### Input:\n{}\n\n### Response:";

std::string text_of(const Json& object, const char* key, const RecordLocation& location) {
    const auto found = object.find(key);
    if (found == object.end()) bad(location, "'{}' is missing", key);
    if (!found->is_string()) bad(location, "'{}' is {}, expected a string", key, found->type_name());
    return found->get<std::string>();
}

std::string optional_text(const Json& object, const char* key, const RecordLocation& location) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? std::string() : text_of(object, key, location);
}

// Maps ShareGPT's names of the speakers to roles.
std::string role_of(const std::string& from, const RecordLocation& location) {
    if (from == "human" || from == "user") return "user";
    if (from == "gpt" || from == "assistant") return "assistant";
    if (from == "system") return "system";
    bad(location, "'from' is '{}', expected human, gpt or system", from);
}

DialogueRecord dialogue_of(const Json& messages, const char* key, const RecordLocation& location) {
    if (!messages.is_array() || messages.empty()) bad(location, "'{}' is no list of messages", key);
    DialogueRecord out;
    for (const Json& message : messages) {
        if (!message.is_object())
            bad(location, "a message in '{}' is {}, expected an object", key, message.type_name());
        if (message.contains("from")) {
            out.push_back(
                {role_of(text_of(message, "from", location), location), text_of(message, "value", location)});
        } else {
            out.push_back({text_of(message, "role", location), text_of(message, "content", location)});
        }
    }
    return out;
}

TrainRecord record_of(const Json& object, const RecordLocation& location) {
    for (const char* key : {"messages", "conversations"}) {
        if (object.contains(key)) return dialogue_of(object[key], key, location);
    }
    if (object.contains("output") && (object.contains("instruction") || object.contains("input"))) {
        const std::string instruction = optional_text(object, "instruction", location),
                          input = optional_text(object, "input", location),
                          answer = text_of(object, "output", location);
        if (instruction.empty()) return InstructionRecord{fmt::format(kInputOnly, input), answer};
        if (input.empty()) return InstructionRecord{fmt::format(kWithoutInput, instruction), answer};
        return InstructionRecord{fmt::format(kWithInput, instruction, input), answer};
    }
    if (object.contains("text")) return TextRecord{text_of(object, "text", location)};
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    bad(location,
        "a record of unknown kind, with {}: expected 'text'; 'instruction', 'input', 'output'; "
        "'conversations' of 'from', 'value'; or 'messages' of 'role', 'content'",
        keys.empty() ? "no members" : join(keys, ", "));
}

TrainRecord parse(std::string_view text, const RecordLocation& location) {
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos)
        bad(location, "no valid UTF-8 at its byte {}", at + 1);
    return record_of(parse_json_line(text, kRecords, location.file, location.line), location);
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

void for_json_lines(std::string_view text, const std::string& path, const UseRecord& use) {
    for_lines(text, [&](std::string_view line, size_t number) {
        if (std::ranges::all_of(line, is_space)) return;
        const RecordLocation location{path, number};
        use(parse(line, location), location, line.size() + 1);
    });
}

// Finds the end of the JSON value that begins at `at`. The parser checks the value itself.
size_t end_of_value(std::string_view text, size_t at) {
    int depth = 0;
    for (bool quoted = false; at < text.size(); ++at) {
        const char c = text[at];
        if (quoted) {
            if (c == '\\') ++at;
            if (c == '"') quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            ++depth;
        } else if (c == '}' || c == ']') {
            if (depth-- == 0) return at;
        } else if (c == ',' && depth == 0) {
            return at;
        }
    }
    return text.size();
}

// Parses an array one element at a time, because the parsed array would take many times the memory.
void for_elements(std::string_view text, size_t at, const std::string& path, const UseRecord& use) {
    size_t line = 1, counted = 0;
    const auto line_at = [&](size_t offset) {
        line += static_cast<size_t>(std::count(text.begin() + static_cast<ptrdiff_t>(counted),
                                               text.begin() + static_cast<ptrdiff_t>(offset), '\n'));
        counted = offset;
        return RecordLocation{path, line};
    };
    const auto skip_space = [&] {
        while (at < text.size() && is_space(text[at])) ++at;
    };
    skip_space();
    for (size_t read = 0; at < text.size() && text[at] != ']'; skip_space()) {
        const RecordLocation location = line_at(at);
        const size_t end = end_of_value(text, at);
        use(parse(text.substr(at, end - at), location), location, end - read);
        read = at = end;
        if (at < text.size() && text[at] == ',') ++at;
    }
    if (at >= text.size()) bad(line_at(text.size()), "the list of records has no end");
    ++at;
    skip_space();
    if (at < text.size()) bad(line_at(at), "there is more after the list of records");
}

// The end of the first part of a plain text, after a whole line if possible.
size_t part_end(std::string_view text, size_t part) {
    if (text.size() <= part) return text.size();
    for (const std::string_view mark : {"\n\n", "\n", " "}) {
        const size_t found = text.rfind(mark, part - mark.size());
        if (found != std::string_view::npos && found >= part / 2)
            return found + (mark == " " ? 0 : mark.size());
    }
    while (part > 1 && (static_cast<unsigned char>(text[part]) & 0xc0) == 0x80) --part;
    return part;
}

void for_parts(std::string_view text, const std::string& path, const UseRecord& use, size_t part) {
    const RecordLocation location{path, 0};
    for (size_t at = 0; at < text.size();) {
        const std::string_view rest = text.substr(at);
        const size_t size = part_end(rest, part);
        if (const size_t invalid = find_invalid_utf8(rest.substr(0, size)); invalid != std::string_view::npos)
            bad(location, "no valid UTF-8 at byte {}: convert it first (iconv -f ENCODING -t UTF-8)",
                at + invalid + 1);
        use(TextRecord{std::string(rest.substr(0, size)), at == 0, size == rest.size()}, location, size);
        at += size;
    }
}

template <typename Sequence>
size_t common_prefix(const Sequence& a, const Sequence& b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// `tokens` between BOS and EOS, scored from `answer` on.
TrainDocument document_of(const std::vector<int32_t>& before, const std::vector<int32_t>& tokens,
                          const std::vector<int32_t>& after, size_t answer) {
    TrainDocument out;
    out.tokens = before;
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
    out.tokens.insert(out.tokens.end(), after.begin(), after.end());
    out.scored.assign(out.tokens.size(), 1);
    std::fill_n(out.scored.begin(), before.size() + answer, uint8_t{0});
    return out;
}

class DialogueTokenizer {
public:
    DialogueTokenizer(const DialogueRecord& dialogue, const TrainTokenizer& tokenizer,
                      const RecordLocation& location)
        : dialogue_(dialogue), tokenizer_(tokenizer), location_(location) {
        if (!tokenizer.dialogue)
            fail(ErrorCode::unsupported, kRecords,
                 "{}: a dialogue, but the model has no chat template - train with text or instructions, or "
                 "take a model that was tuned for chat",
                 location.str());
    }

    std::vector<TrainDocument> everything() const {
        return {document(render(dialogue_.size(), false), {}, true)};
    }

    std::vector<TrainDocument> answers_only() const {
        const std::string whole = render(dialogue_.size(), false);
        std::vector<Answer> answers;
        bool extends = true;
        for (size_t i = 0; i < dialogue_.size(); ++i) {
            if (dialogue_[i].role != "assistant") continue;
            answers.push_back(find_answer(i, i + 1 == dialogue_.size() ? whole : render(i + 1, false)));
            const Answer& last = answers.back();
            extends = extends && whole.starts_with(std::string_view(last.text).substr(0, last.end));
        }
        if (answers.empty())
            bad(location_, "a dialogue without a message of the assistant: nothing to learn from");
        if (extends) return {document(whole, answers, false)};
        std::vector<TrainDocument> out;
        for (const Answer& answer : answers) out.push_back(document(answer.text, {&answer, 1}, false));
        return out;
    }

private:
    struct Answer {
        size_t begin, end;  // byte range in `text`, the dialogue up to this answer
        std::string text;
    };

    std::string render(size_t messages, bool answer_follows) const {
        try {
            return tokenizer_.dialogue(std::span(dialogue_).first(messages), answer_follows);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::input) throw;
            bad(location_, "the chat template refuses {}: {}",
                messages == dialogue_.size() ? "the dialogue"
                                             : fmt::format("the first {} messages of the dialogue", messages),
                error.what());
        }
    }

    // The model's answer begins where its prompt ends. It ends with the end-of-turn mark, without the white
    // space that templates put after it.
    Answer find_answer(size_t message, std::string text) const {
        const std::string prompt = render(message, true);
        size_t begin = common_prefix(prompt, text);
        while (begin > 0 && begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80)
            --begin;
        // A prompt may end with more text than the turn of the answer begins with, but must not differ
        // earlier.
        if (begin < prompt.size() && message > 0 && begin < without_space(render(message, false)))
            bad(location_,
                "the chat template writes the messages before message {} in another way once it is there, so "
                "its tokens cannot be told apart - train on everything, or with another template",
                message + 1);
        const size_t end = std::max(begin, without_space(text));
        return {begin, end, std::move(text)};
    }

    static size_t without_space(std::string_view text) {
        while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
        return text.size();
    }

    TrainDocument document(const std::string& text, std::span<const Answer> answers, bool all) const {
        const std::vector<int32_t> tokens = tokenizer_.template_tokens(text);
        // Most templates write BOS themselves.
        const bool begun = common_prefix(tokenizer_.before, tokens) == tokenizer_.before.size();
        const std::vector<int32_t> before = begun ? std::vector<int32_t>() : tokenizer_.before;
        TrainDocument out =
            document_of(before, tokens, {}, all ? (begun ? tokenizer_.before.size() : 0) : tokens.size());
        const auto token_at = [&](size_t byte) {
            const auto prefix = tokenizer_.template_tokens(std::string_view(text).substr(0, byte));
            return before.size() + common_prefix(prefix, tokens);
        };
        for (const Answer& answer : answers) {
            const size_t begin = token_at(answer.begin), end = token_at(answer.end);
            std::fill(out.scored.begin() + static_cast<ptrdiff_t>(begin),
                      out.scored.begin() + static_cast<ptrdiff_t>(std::max(begin, end)), uint8_t{1});
        }
        return out;
    }

    const DialogueRecord& dialogue_;
    const TrainTokenizer& tokenizer_;
    const RecordLocation& location_;
};

}  // namespace

std::string RecordLocation::str() const {
    return line == 0 ? fmt::format("'{}'", file) : fmt::format("'{}', line {}", file, line);
}

bool holds_records(const std::string& path) {
    const std::string extension = std::filesystem::path(path).extension().string();
    return extension == ".json" || extension == ".jsonl";
}

void for_records(std::string_view text, const std::string& path, const UseRecord& use, size_t part) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    if (!holds_records(path)) return for_parts(text, path, use, part);
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && text[first] == '[')
        return for_elements(text, first + 1, path, use);
    for_json_lines(text, path, use);
}

std::vector<TrainDocument> tokenize(const TrainRecord& record, const TrainTokenizer& tokenizer,
                                    bool responses_only, const RecordLocation& location) {
    if (const auto* text = std::get_if<TextRecord>(&record)) {
        const std::vector<int32_t> none, tokens = tokenizer.tokens(text->text);
        return {document_of(text->begins ? tokenizer.before : none, tokens,
                            text->ends ? tokenizer.after : none, 0)};
    }
    if (const auto* instruction = std::get_if<InstructionRecord>(&record)) {
        const auto tokens = tokenizer.tokens(instruction->prompt + instruction->answer);
        // A token across the end of the prompt belongs to the answer.
        const size_t answer =
            responses_only ? common_prefix(tokenizer.tokens(instruction->prompt), tokens) : 0;
        return {document_of(tokenizer.before, tokens, tokenizer.after, answer)};
    }
    const DialogueTokenizer dialogue(std::get<DialogueRecord>(record), tokenizer, location);
    return responses_only ? dialogue.answers_only() : dialogue.everything();
}

}  // namespace refold
