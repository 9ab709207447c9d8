#include "tasks/work_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json_text.h"

namespace refold {
namespace {

using nlohmann::json;

std::string line_of(const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<ExitCounts> exits_from(const json& value) {
    if (!value.is_object()) return std::nullopt;
    ExitCounts counts;
    const json loops = value.value("exits", json()), agreed = value.value("agreed", json());
    const auto number = [](const json& v) { return v.is_number_integer(); };
    if (!loops.is_array() || !std::all_of(loops.begin(), loops.end(), number) || !number(agreed))
        return std::nullopt;
    counts.at_loop = loops.get<std::vector<int64_t>>();
    counts.agreed = agreed.get<int64_t>();
    return counts;
}

[[noreturn]] void failed(const std::string& path) {
    fail(ErrorCode::io, "tasks", "cannot write '{}': {}", path, std::strerror(errno));
}

}  // namespace

WorkFile::WorkFile(std::string path, const std::string& key) : path_(std::move(path)) {
    read(key);
    const bool fresh = found() == 0;
    std::error_code none;
    if (const auto folder = std::filesystem::path(path_).parent_path(); !folder.empty())
        std::filesystem::create_directories(folder, none);
    const int descriptor =
        open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (fresh ? O_TRUNC : O_APPEND), 0666);
    file_ = descriptor < 0 ? nullptr : fdopen(descriptor, fresh ? "w" : "a");
    if (file_ == nullptr) failed(path_);
    // A line that was cut off must not swallow the next one.
    append(fresh ? line_of({{"key", key}}) : "\n");
}

WorkFile::~WorkFile() {
    if (file_ == nullptr) return;
    if (found() + added_ == 0) {
        finish();
    } else {
        std::fclose(file_);
    }
}

void WorkFile::read(const std::string& key) {
    const std::filesystem::file_status status = std::filesystem::symlink_status(path_);
    if (!std::filesystem::exists(status)) return;
    std::ifstream in;
    if (std::filesystem::is_regular_file(status)) in.open(path_);
    std::string line;
    if (in.is_open() && !std::getline(in, line)) return;
    const std::string begin = R"({"key":)";
    const bool cut_off = in.eof() && (line.starts_with(begin) || begin.starts_with(line));
    const json header = try_parse_json(line);
    if (cut_off) return;
    if (!header.is_object() || header.size() != 1 || !header.contains("key"))
        fail(ErrorCode::usage, "tasks",
             "'{}' is there and is no file of answers, which are kept under this name - move it away, or "
             "choose another output",
             path_);
    if (header["key"] != key) return;
    while (std::getline(in, line)) {
        json v = try_parse_json(line);
        if (!v.is_array() || v.size() < 3 || !v[0].is_number_unsigned() || !v[1].is_number_unsigned())
            continue;
        const RequestId request{v[0].get<size_t>(), v[1].get<size_t>()};
        if (auto exits = exits_from(v.back())) {
            exits_[request] = std::move(*exits);
            v.erase(v.size() - 1);
        }
        if (v.size() == 3 && v[2].is_string()) {
            texts_[request] = v[2].get<std::string>();
        } else if (v.size() == 4 && v[2].is_number() && v[3].is_boolean()) {
            likelihoods_[request] = {v[2].get<double>(), v[3].get<bool>()};
        }
    }
}

const Likelihood* WorkFile::likelihood(RequestId request) const {
    const auto found = likelihoods_.find(request);
    return found == likelihoods_.end() ? nullptr : &found->second;
}

const std::string* WorkFile::text(RequestId request) const {
    const auto found = texts_.find(request);
    return found == texts_.end() ? nullptr : &found->second;
}

const ExitCounts* WorkFile::exits(RequestId request) const {
    const auto found = exits_.find(request);
    return found == exits_.end() ? nullptr : &found->second;
}

void WorkFile::add(RequestId request, const Likelihood& likelihood, const ExitCounts* exits) {
    append({request.first, request.second, likelihood.log_likelihood, likelihood.greedy}, exits);
}

void WorkFile::add(RequestId request, const std::string& text, const ExitCounts* exits) {
    append({request.first, request.second, text}, exits);
}

void WorkFile::append(json answer, const ExitCounts* exits) {
    if (exits != nullptr) answer.push_back({{"exits", exits->at_loop}, {"agreed", exits->agreed}});
    append(line_of(answer));
    ++added_;
}

void WorkFile::append(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
        failed(path_);
}

void WorkFile::finish() {
    std::fclose(file_);
    file_ = nullptr;
    std::error_code none;
    std::filesystem::remove(path_, none);
}

}  // namespace refold
