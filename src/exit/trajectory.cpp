#include "exit/trajectory.h"

#include "core/error.h"
#include "core/json_lines.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "refold exits";

void parse_header(const Json& line, ExitTrajectory& out, const std::string& name) {
    const Json format = line.value("format", Json()), version = line.value("version", Json()),
               loops = line.value("loops", Json());
    if (format != kFormat)
        fail(ErrorCode::input, "exits", "'{}' has no exits: expected \"format\": \"{}\"", name, kFormat);
    if (version != 1)
        fail(ErrorCode::input, "exits", "'{}' has version {}, this program reads 1", name, version.dump());
    if (!loops.is_number_unsigned() || loops < 1 || loops > 1000)
        fail(ErrorCode::input, "exits", "'{}': \"loops\" is {}, expected 1 to 1000", name, loops.dump());
    out.loops = loops;
    out.about = line;
    for (const char* key : {"format", "version", "loops"}) out.about.erase(key);
}

std::vector<int32_t> parse_sequence(const Json& line, int32_t loops, const std::string& name, size_t number) {
    const auto exits = line.find("exits");
    if (exits == line.end() || !exits->is_array())
        fail(ErrorCode::input, "exits", "'{}', line {}: no list \"exits\"", name, number);
    std::vector<int32_t> out;
    for (const Json& exit : *exits) {
        if (!exit.is_number_unsigned() || exit < 1 || exit > loops)
            fail(ErrorCode::input, "exits", "'{}', line {}: an exit after loop {}, expected 1 to {}", name,
                 number, exit.dump(), loops);
        out.push_back(exit);
    }
    return out;
}

}  // namespace

std::string to_json_lines(const ExitTrajectory& trajectory) {
    Json header{{"format", kFormat}, {"version", 1}, {"loops", trajectory.loops}};
    header.update(trajectory.about);
    std::string out = header.dump() + "\n";
    for (const auto& exits : trajectory.sequences) out += Json{{"exits", exits}}.dump() + "\n";
    return out;
}

ExitTrajectory parse_exit_trajectory(const std::string& text, const std::string& name) {
    ExitTrajectory out;
    for_lines(text, [&](std::string_view line, size_t number) {
        if (line.empty()) return;
        const Json parsed = parse_json_line(line, "exits", name, number);
        out.loops == 0 ? parse_header(parsed, out, name)
                       : out.sequences.push_back(parse_sequence(parsed, out.loops, name, number));
    });
    if (out.loops == 0) fail(ErrorCode::input, "exits", "'{}' is empty", name);
    return out;
}

}  // namespace refold
