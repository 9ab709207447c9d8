#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/processors.h"
#include "core/text.h"
#include "engine/cpu_level.h"
#include "engine/devices.h"
#include "engine/engine.h"
#include "hub/hub.h"
#include "io/catalogue.h"
#include "io/ggml_cpu.h"

namespace refold::cli::doctor_verb {
namespace {

namespace fs = std::filesystem;

enum class State { good, advice, broken };

// One thing that was looked at: what was found, and where it could be better, what to do.
struct Finding {
    const char* name;
    State state;
    std::string found, advice;
};

const char* text_of(State state) {
    switch (state) {
        case State::good: return "ok";
        case State::advice: return "note";
        default: return "BROKEN";
    }
}

Finding cpu() {
    choose_cpu_level();
    const auto levels = cpu_levels();
    const bool lowered = cpu_level() != levels.front();
    return {"CPU", lowered ? State::advice : State::good,
            fmt::format("{}; ggml's products: {}", cpu_level(), ggml_cpu_variant()),
            lowered ? fmt::format("REFOLD_CPU asks for less than this CPU can do: {}", levels.front()) : ""};
}

Finding threads() {
    const Processors found = processors();
    const int used = default_threads();
    std::string advice;
    if (found.quota && *found.quota < found.cores) advice = "a quota of the control group limits the threads";
    return {"threads", advice.empty() ? State::good : State::advice,
            fmt::format("{} of {} processors on {} cores", used, found.allowed, found.cores), advice};
}

Finding memory() {
    const Memory found = memory_of();
    if (found.available == 0) return {"memory", State::advice, "not known", ""};
    const bool little = found.available < (uint64_t{1} << 30);
    return {"memory", little ? State::advice : State::good,
            fmt::format("{} of {} available", format_bytes(found.available), format_bytes(found.limit)),
            little ? "a model needs the memory that `refold inspect MODEL` shows, and its KV cache" : ""};
}

Finding torch() {
    if (has_torch_engine()) return {"training", State::good, "libtorch's engine is there", ""};
    return {"training", State::advice, "this build has no libtorch",
            "install libtorch (Debian: libtorch-dev) and build again, or use scripts/build-cuda for GPUs; "
            "everything but `train` and --engine torch works without"};
}

// The nearest part of a path that exists.
fs::path existing(fs::path path) {
    std::error_code none;
    while (!fs::exists(path, none) && path.has_relative_path()) path = path.parent_path();
    return path;
}

bool can_write(const fs::path& folder) {
    std::string name = (folder / "refold-doctor-XXXXXX").string();
    const int file = mkstemp(name.data());
    if (file < 0) return false;
    close(file);
    unlink(name.c_str());
    return true;
}

Finding folder(const char* name, const fs::path& path, const char* variable) {
    const fs::path place = existing(path);
    std::error_code none;
    const fs::space_info space = fs::space(place, none);
    const std::string where = path.string() + (place == path ? "" : " (not there yet)");
    if (!can_write(place))
        return {name, State::broken, where + " cannot be written",
                fmt::format("set {} to a folder that can be", variable)};
    const bool little = !none && space.available < (uint64_t{2} << 30);
    return {name, little ? State::advice : State::good,
            fmt::format("{}, {} free", where, none ? "?" : format_bytes(space.available)),
            little ? fmt::format("models take gigabytes: set {} to a larger disk", variable) : ""};
}

Finding models() {
    std::vector<std::string> names;
    for (const CatalogueEntry& entry : catalogue())
        if (fs::exists(pulled_path(entry))) names.emplace_back(entry.name);
    return {"models", names.empty() ? State::advice : State::good,
            names.empty() ? "none of the catalogue is here" : join(names, ", "),
            names.empty() ? fmt::format("refold pull {}", catalogue().front().name) : ""};
}

Finding devices() {
    std::vector<std::string> others;
    for (const Device& device : list_devices())
        if (!device.module.empty()) others.push_back(fmt::format("{} ({})", device.name, device.description));
    return {"devices", State::good,
            others.empty() ? "the CPU; for GPUs, modules of ggml are looked for beside the program"
                           : "the CPU, " + join(others, ", "),
            others.empty() ? "" : "--device auto uses the first of them; see refold devices"};
}

bool is_on_path(const char* program) {
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
        const fs::path file = fs::path(folder) / program;
        std::error_code none;
        if (fs::is_regular_file(file, none) && access(file.c_str(), X_OK) == 0) return true;
    }
    return false;
}

// A way to get refold from its source (docs/installing.md), and the programs that it needs.
struct Way {
    const char* name;
    struct Program {
        const char *name, *package;  // of Debian
    };
    std::vector<Program> needs;
};

Finding way(const Way& way) {
    std::vector<std::string> missing, packages;
    for (const auto& [program, package] : way.needs) {
        if (is_on_path(program)) continue;
        missing.emplace_back(program);
        packages.emplace_back(package);
    }
    if (missing.empty()) return {way.name, State::good, "its programs are there", ""};
    return {way.name, State::advice, "lacks " + join(missing, ", "),
            fmt::format("to build refold in this way: apt-get install {}", join(packages, " "))};
}

std::vector<Way> ways() {
    const std::vector<Way::Program> build = {
        {"g++", "g++"}, {"cmake", "cmake"},           {"ninja", "ninja-build"},
        {"git", "git"}, {"pkg-config", "pkg-config"}, {"pip3", "python3-pip"}};
    std::vector<Way::Program> packages = build;
    packages.insert(packages.end(), {{"dpkg-shlibdeps", "dpkg-dev"}, {"file", "file"}});
    return {{"scripts/build", build},
            {"pip install", build},
            {"scripts/package-deb", packages},
            {"docker build", {{"docker", "docker.io"}}}};
}

void show(const ReportOptions& report) {
    std::vector<Finding> findings = {cpu(),
                                     threads(),
                                     memory(),
                                     devices(),
                                     torch(),
                                     folder("cache", cache_directory(), "REFOLD_CACHE"),
                                     folder("hub cache", hub_cache(), "HF_HOME"),
                                     models()};
    for (const Way& one : ways()) findings.push_back(way(one));
    bool broken = false;
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    std::string text = "refold " REFOLD_VERSION "\n";
    for (const Finding& f : findings) {
        broken |= f.state == State::broken;
        list.push_back(
            {{"name", f.name}, {"state", text_of(f.state)}, {"found", f.found}, {"advice", f.advice}});
        text += fmt::format("  {:<6}  {:<19}  {}\n", text_of(f.state), f.name, f.found);
        if (!f.advice.empty()) text += fmt::format("  {:<6}  {:<19}    {}\n", "", "", f.advice);
    }
    report.json ? print_json({{"version", REFOLD_VERSION}, {"findings", list}}) : print(text);
    if (broken) fail(ErrorCode::io, "doctor", "refold cannot work as it is: see what is BROKEN");
}

Action declare(CLI::App& app) {
    auto report = std::make_shared<ReportOptions>();
    add_report_options(app, *report);
    add_examples(app, {"refold doctor", "refold doctor --json"});
    return [report] { show(*report); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"doctor", VerbGroup::setup,
                   "Check what this machine and this build can do, and how to get the rest", declare};

}  // namespace refold::cli::doctor_verb
