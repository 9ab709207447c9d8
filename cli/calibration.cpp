#include "cli/calibration.h"

#include <filesystem>

#include "core/error.h"
#include "core/sha256.h"
#include "core/text.h"
#include "text/tokenizer.h"
#include "train/records.h"

namespace refold::cli {

Calibration load_calibration(const std::vector<std::string>& paths, const std::string& model,
                             const CalibrationOptions& options) {
    const Tokenizer tokenizer(model);
    std::vector<std::string> contents;
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& path : paths) {
        contents.push_back(read_text_file(path));
        tokens.push_back(tokenizer.encode(contents.back(), tokenizer.adds_bos(), false));
    }
    std::vector<CalibrationText> texts;
    for (size_t t = 0; t < paths.size(); ++t)
        texts.push_back({std::filesystem::path(paths[t]).filename().string(), contents[t], tokens[t]});
    return make_calibration(texts, options);
}

namespace {

struct WithoutRoles {
    std::string operator()(const TextRecord& record) const { return record.text; }
    std::string operator()(const InstructionRecord& record) const {
        return record.prompt + "\n" + record.answer;
    }
    std::string operator()(const DialogueRecord& record) const {
        std::vector<std::string> messages;
        for (const auto& message : record) messages.push_back(message.content);
        return join(messages, "\n");
    }
};

}  // namespace

Calibration load_samples(const std::vector<std::string>& paths, const std::string& model,
                         const CalibrationOptions& options) {
    const Tokenizer tokenizer(model);
    Calibration out;
    out.options = options;
    std::vector<std::vector<std::vector<int32_t>>> samples;  // by file
    std::string hashes;
    for (const std::string& path : paths) {
        const std::string content = read_text_file(path);
        out.texts.push_back(
            {std::filesystem::path(path).filename().string(), sha256_hex(std::as_bytes(std::span(content)))});
        hashes += out.texts.back().hash;
        auto& own = samples.emplace_back();
        int64_t tokens = 0;
        for_records(content, path, [&](const TrainRecord& record, const RecordLocation&, size_t) {
            if (tokens >= options.tokens) return;
            auto sample = tokenizer.encode(std::visit(WithoutRoles(), record), true, false);
            sample.resize(std::min(sample.size(), static_cast<size_t>(options.length)));
            tokens += static_cast<int64_t>(sample.size());
            if (sample.size() >= 2) own.push_back(std::move(sample));
        });
        if (own.empty()) fail(ErrorCode::input, "calibration", "'{}': there are no records", path);
    }
    out.hash = sha256_hex(std::as_bytes(std::span(hashes)));
    int64_t left = options.tokens;
    for (size_t i = 0, found = 1; found > 0 && left > 0; ++i) {
        found = 0;
        for (auto& of_file : samples) {
            if (i >= of_file.size() || left <= 0) continue;
            left -= static_cast<int64_t>(of_file[i].size());
            out.fit.push_back(std::move(of_file[i]));
            ++found;
        }
    }
    return out;
}

}  // namespace refold::cli
