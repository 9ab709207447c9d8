#include "papers/known_numbers.h"

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/json_lines.h"
#include "core/text.h"

namespace refold {

KnownNumbers::KnownNumbers(std::string path) : path_(std::move(path)) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (const fs::path folder = fs::path(path_).parent_path(); !folder.empty()) {
        fs::create_directories(folder, error);
        if (error) fail(ErrorCode::io, "reproduce", "cannot make '{}': {}", folder.string(), error.message());
    }
    if (!fs::exists(path_, error) || fs::file_size(path_, error) == 0) return;
    for_lines(read_text_file(path_), [&](std::string_view line, size_t number) {
        if (line.empty()) return;  // after the last newline
        const auto entry = parse_json_line(line, "reproduce", path_, number);
        const auto of = entry.find("of"), value = entry.find("number");
        if (of == entry.end() || !of->is_string() || value == entry.end() ||
            !(value->is_number() || value->is_null()))
            fail(ErrorCode::input, "reproduce", "{} line {}: expected 'of' and 'number' - remove the file",
                 path_, number);
        known_[of->get<std::string>()] = value->is_null() ? std::nan("") : value->get<double>();
    });
}

const double* KnownNumbers::find(const std::string& of) const {
    const auto found = known_.find(of);
    return found == known_.end() ? nullptr : &found->second;
}

void KnownNumbers::keep(const std::string& of, double number) {
    known_[of] = number;
    std::string lines;
    for (const auto& [key, value] : known_)
        lines += nlohmann::ordered_json{{"of", key}, {"number", value}}.dump() + "\n";
    write_file(path_, lines);
}

}  // namespace refold
