#include "analyze/stored_analysis.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "core/files.h"
#include "core/group.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "core/stored_text.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Increase whenever the content of a part changes.
constexpr int kVersion = 1;

std::string key_of(AnalysisPart part, const std::string& files, const Calibration* calibration,
                   const AnalysisOptions& options) {
    std::string text = fmt::format("refold analyze {} {}\n{}", kVersion, part_name(part), files);
    if (needs_text(part))
        text += fmt::format("{} {} {} {}\n", calibration->hash, calibration->options.tokens,
                            calibration->options.length, options.pass.f32);
    if (part == AnalysisPart::heads)
        text += fmt::format("{} {} {}\n", options.ratio, options.repeats, options.sample);
    return sha256_hex(std::as_bytes(std::span(text)));
}

// Returns a discarded value when the file is missing or unreadable.
Json read_part(const fs::path& path) {
    try {
        return try_parse_json<Json>(read_stored_text(path.string()), nullptr, kLargeJson);
    } catch (const Error&) {
        return Json(Json::value_t::discarded);
    }
}

// Ignores a cache that cannot be written: it must not cost this run's result.
void keep_part(const fs::path& path, const Json& part) {
    try {
        std::error_code none;
        fs::create_directories(path.parent_path(), none);
        write_file(path.string(), part.dump());
    } catch (const Error& error) {
        if (error.code() != ErrorCode::io) throw;
    }
}

std::vector<std::vector<int32_t>> all_sequences(const Calibration* calibration) {
    if (calibration == nullptr) return {};
    auto sequences = calibration->fit;
    sequences.insert(sequences.end(), calibration->held_out.begin(), calibration->held_out.end());
    return sequences;
}

// The parts that the first process still has to compute; the other processes join only for parts that need
// text.
std::set<AnalysisPart> parts_together(const std::set<AnalysisPart>& own) {
    std::string names;
    for (const AnalysisPart part : own) names += std::string(part_name(part)) + "\n";
    std::istringstream first(group().gather(names)[0]);
    std::set<AnalysisPart> parts;
    for (std::string name; std::getline(first, name);)
        if (const AnalysisPart part = part_from_name(name); group().first() || needs_text(part))
            parts.insert(part);
    return parts;
}

}  // namespace

std::string files_identity(const std::string& path, const Model& model) {
    std::set<std::string> files;
    const auto add = [&](const fs::path& file) {
        std::error_code none;
        files.insert(fs::canonical(file, none).string());
    };
    if (fs::is_directory(path)) {
        for (const auto& entry : fs::directory_iterator(path)) {
            if (entry.is_regular_file()) add(entry.path());
        }
    } else {
        add(path);
    }
    if (model.source != nullptr) {
        for (const auto& file : model.source->files()) add(file->path());
    }
    std::string text;
    for (const auto& file : files) {
        struct stat status {};
        if (stat(file.c_str(), &status) != 0) continue;
        text += fmt::format("{} {} {}.{} {}\n", file, status.st_size, status.st_mtim.tv_sec,
                            status.st_mtim.tv_nsec, status.st_ino);
    }
    return text;
}

Analysis stored_analysis(const Model& model, const std::string& path, const Calibration* calibration,
                         const AnalysisOptions& options, const std::string& folder) {
    const auto missing_text = std::find_if(options.parts.begin(), options.parts.end(), needs_text);
    if (calibration == nullptr && missing_text != options.parts.end())
        fail(ErrorCode::usage, "analyze", "'{}' looks at activations: give a text with --calib",
             part_name(*missing_text));
    const auto missing_original = std::find_if(options.parts.begin(), options.parts.end(), needs_original);
    if (options.original == nullptr && missing_original != options.parts.end())
        fail(ErrorCode::usage, "analyze", "'{}' compares with the original model: name it with --original",
             part_name(*missing_original));
    const std::string files = files_identity(path, model);
    const std::string original =
        options.original != nullptr ? files_identity(options.original_path, *options.original) : "";
    const auto place = [&](AnalysisPart part) {
        const std::string compared = needs_original(part) ? files + "original\n" + original : files;
        return fs::path(folder) / (key_of(part, compared, calibration, options) + ".json");
    };
    Analysis out;
    AnalysisOptions left = options;
    if (!folder.empty()) {
        for (const AnalysisPart part : options.parts) {
            Json stored = read_part(place(part));
            if (!stored.is_object()) continue;
            out[part] = std::move(stored);
            left.parts.erase(part);
        }
    }
    if (group().size() > 1) left.parts = parts_together(left.parts);
    for (auto& [part, result] : analyze(model, all_sequences(calibration), left)) {
        if (!folder.empty() && group().first()) keep_part(place(part), result);
        out[part] = std::move(result);
    }
    return out;
}

}  // namespace refold
