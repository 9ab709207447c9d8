#include "report/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/file_hash.h"
#include "core/files.h"
#include "core/text.h"
#include "model/accounting.h"
#include "model/load.h"
#include "report/json_access.h"
#include "report/provenance.h"
#include "report/training.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

bool is_model(const fs::path& path) {
    return path.extension() == ".gguf" || (fs::is_directory(path) && fs::exists(path / "config.json"));
}

bool is_gguf(const std::string& path) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    constexpr std::string_view kMagic = "GGUF";
    return bytes.size() >= kMagic.size() &&
           std::equal(kMagic.begin(), kMagic.end(), bytes.begin(),
                      [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
}

bool same_path(const std::string& a, const std::string& b) {
    std::error_code none;
    return !a.empty() && !b.empty() && (a == b || fs::equivalent(a, b, none));
}

// The metrics.jsonl files of a training run, or of the training steps of a recipe.
std::set<fs::path> metrics_in(const fs::path& folder) {
    std::set<fs::path> out;
    const auto add = [&](const fs::path& path) {
        if (fs::is_regular_file(path / "metrics.jsonl")) out.insert(path / "metrics.jsonl");
    };
    add(folder);
    for (const auto& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
        if (entry.path().filename().string().starts_with("step-")) add(entry.path());
    }
    return out;
}

void add_directory(const fs::path& folder, Runs& runs) {
    std::set<fs::path> entries = metrics_in(folder);
    for (const auto& entry : fs::directory_iterator(folder)) {
        entries.insert(entry.path());
        // The output of `analyze -o`.
        if (entry.is_directory() && fs::exists(entry.path() / "analysis.json"))
            entries.insert(entry.path() / "analysis.json");
        if (entry.is_directory()) entries.merge(metrics_in(entry.path()));
    }
    const size_t before = runs.models.size() + runs.results.size();
    for (const fs::path& path : entries) {
        if (same_path(path, runs.output)) continue;
        if (is_model(path)) {
            runs.models.push_back({path.string(), ""});
        } else if (path.filename() == "metrics.jsonl") {
            runs.results.push_back(read_training(path.string()));
        } else if (path.extension() == ".json" && fs::is_regular_file(path)) {
            try {
                runs.results.push_back(read_run(path.string()));
            } catch (const Error& error) {
                if (error.code() != ErrorCode::input) throw;
                runs.skipped.push_back(path.filename().string());
            }
        }
    }
    if (runs.models.size() + runs.results.size() == before)
        fail(ErrorCode::input, "report", "{}: there is neither a model nor a result in this directory",
             folder.string());
}

FileHashes hash_files(const Model& model) {
    FileHashes out;
    if (model.source == nullptr) return out;
    for (const auto& file : model.source->files())
        out[fs::path(file->path()).filename().string()] = remembered_sha256(file->path());
    return out;
}

std::string compress_command(const json& provenance, const Variant& v) {
    const std::string source = text_of(member(member(provenance, "source"), "file"));
    if (v.recipe.empty() || source.empty()) return "";
    return fmt::format("refold compress {} -o {} --recipe {}.recipe.yaml  # the recipe is below", source,
                       v.file, v.name);
}

template <typename T>
void take(std::optional<T>& to, const std::optional<T>& from) {
    if (!to) to = from;
}

// Treats all values that are not finite as equal, because JSON stores them as null.
bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
    return std::ranges::equal(
        a, b, [](double x, double y) { return x == y || (!std::isfinite(x) && !std::isfinite(y)); });
}
bool same(const TrainingRun& a, const TrainingRun& b) {
    return a.name == b.name &&
           std::ranges::is_permutation(a.curves, b.curves, [](const auto& x, const auto& y) {
               return x.name == y.name && same_numbers(x.steps, y.steps) && same_numbers(x.values, y.values);
           });
}
bool same(const auto& a, const auto& b) { return a == b; }

// Adds only new items, because combined reports may describe the same model.
void append(auto& to, const auto& from) {
    for (const auto& item : from) {
        if (std::ranges::none_of(to, [&](const auto& known) { return same(known, item); }))
            to.push_back(item);
    }
}

void merge(Variant& to, const Variant& from) {
    for (auto field :
         {&Variant::recipe, &Variant::path, &Variant::file, &Variant::prompt, &Variant::generated}) {
        if ((to.*field).empty()) to.*field = from.*field;
    }
    if (to.hashes.empty()) to.hashes = from.hashes;
    for (auto field : {&Variant::parameters, &Variant::file_bytes, &Variant::kv_bytes_per_token,
                       &Variant::resident_weight_bytes, &Variant::resident_set_bytes})
        take(to.*field, from.*field);
    take(to.beyond_equal_size, from.beyond_equal_size);
    take(to.prefill, from.prefill);
    take(to.decode, from.decode);
    append(to.perplexities, from.perplexities);
    append(to.tasks, from.tasks);
    if (to.steps.empty()) to.steps = from.steps;
    if (to.svd_errors.empty()) to.svd_errors = from.svd_errors;
    append(to.analyses, from.analyses);
    append(to.training, from.training);
    append(to.origins, from.origins);
    take(to.topology, from.topology);
    take(to.reconstruction, from.reconstruction);
}

class Collector {
public:
    Collector(const Runs& runs, const CollectOptions& options) : runs_(runs), options_(options) {}

    Comparison collect() {
        for (const auto& named : runs_.models) add_model(named);
        for (const auto& result : runs_.results) {
            for (const Variant& before : result.before) add(before, result.label);
            add(result.variant, result.label);
            about(result);
        }
        sort_originals_first();
        if (options_.reconstruction) compare_all();
        finish();
        return std::move(out_);
    }

private:
    struct Entry {
        Variant variant;
        std::optional<Model> model;
        std::string command;
        std::string label;  // of the first result about it
    };

    void add_model(const NamedModel& named) {
        // Paths to the same file are one model.
        for (const Entry& entry : entries_) {
            if (same_path(entry.variant.path, named.path)) return;
        }
        Model model = load_model(named.path);
        const json provenance = provenance_of(model);
        Variant v = describe_model(model, named);
        std::string command = compress_command(provenance, v);
        entries_.push_back({std::move(v), std::move(model), std::move(command), ""});
    }

    Entry* find(const Variant& v) {
        const auto first = [&](auto&& matches) -> Entry* {
            const auto found = std::find_if(entries_.begin(), entries_.end(), matches);
            return found == entries_.end() ? nullptr : &*found;
        };
        if (!v.hashes.empty()) {
            Entry* same = first([&](const Entry& e) { return same_files(e.variant.hashes, v.hashes); });
            if (same != nullptr) return same;
        }
        // If both have hashes, which differ, the file has changed and its name proves nothing.
        const auto may_be = [&](const Entry& e) { return v.hashes.empty() || e.variant.hashes.empty(); };
        if (Entry* same =
                first([&](const Entry& e) { return may_be(e) && same_path(e.variant.path, v.path); }))
            return same;
        return first([&](const Entry& e) {
            return may_be(e) && !v.name.empty() &&
                   ((!v.file.empty() && e.variant.file == v.file) || e.variant.name == v.name);
        });
    }

    // Matches the name of the result's file: small.ppl.json belongs to small.gguf.
    Entry* find_by_label(const std::string& label) {
        const std::string name = fs::path(label).filename().string();
        Entry* best = nullptr;
        for (Entry& entry : entries_) {
            const std::string& own = entry.variant.name;
            const bool begins = !own.empty() && name.starts_with(own) && name.size() > own.size() &&
                                std::string_view("._-").find(name[own.size()]) != std::string_view::npos;
            if (begins && (best == nullptr || own.size() > best->variant.name.size())) best = &entry;
        }
        return best;
    }

    void add(const Variant& v, const std::string& label) {
        Entry* entry = find(v);
        if (entry == nullptr && v.name.empty()) entry = find_by_label(label);
        if (entry != nullptr) {
            merge(entry->variant, v);
            return;
        }
        const bool changed = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) {
            return e.model && !v.file.empty() && e.variant.file == v.file;
        });
        Variant own = v;
        if (own.name.empty()) own.name = fs::path(label).stem().string();
        if (changed) {
            note(fmt::format("{} was measured on another file than the {} that is there now.",
                             fs::path(label).filename().string(), v.file));
            own.name += " (another file)";
        }
        entries_.push_back({std::move(own), std::nullopt, "", label});
    }

    void note(const std::string& text) { append(out_.notes, std::vector{text}); }

    void about(const RunResult& result) {
        append(commands_, result.commands);
        append(out_.notes, result.notes);
        if (!result.machine.cpu.empty()) {
            cpus_.insert(result.machine.cpu);
            if (out_.machine.cpu.empty()) out_.machine = result.machine;
        }
        if (result.machine.threads > 0) threads_.insert(result.machine.threads);
        if (!result.version.empty()) versions_.insert(result.version);
    }

    bool is_original(const Entry& entry) const {
        if (!options_.original.empty()) return same_path(entry.variant.path, options_.original);
        return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
            return std::ranges::any_of(other.variant.origins, [&](const FileHashes& hashes) {
                return same_files(hashes, entry.variant.hashes);
            });
        });
    }

    void sort_originals_first() {
        std::vector<Entry> originals, others;
        for (Entry& entry : entries_) (is_original(entry) ? originals : others).push_back(entry);
        // An original that was made from another one comes after it.
        std::stable_sort(originals.begin(), originals.end(), [](const Entry& a, const Entry& b) {
            return a.variant.origins.size() < b.variant.origins.size();
        });
        entries_ = std::move(originals);
        for (Entry& entry : others) entries_.push_back(std::move(entry));
    }

    // The original model that was asked for, or the oldest model that this one was made from.
    const Entry* original_of(const Entry& entry) const {
        const Entry* found = nullptr;
        for (const Entry& other : entries_) {
            if (&other == &entry || !other.model) continue;
            if (same_path(other.variant.path, options_.original)) return &other;
        }
        for (const FileHashes& hashes : entry.variant.origins) {
            for (const Entry& other : entries_) {
                if (&other != &entry && other.model && same_files(hashes, other.variant.hashes))
                    found = &other;
            }
        }
        return found;
    }

    void compare_all() {
        for (Entry& entry : entries_) {
            const Entry* original = entry.model ? original_of(entry) : nullptr;
            if (original == nullptr || same_path(entry.variant.path, options_.original)) continue;
            try {
                entry.variant.reconstruction = compare_weights(*original->model, *entry.model);
            } catch (const Error& error) {
                if (error.code() != ErrorCode::input) throw;
                note(fmt::format("The weights of {} cannot be compared with those of {}: {}",
                                 entry.variant.name, original->variant.name, error.what()));
            }
        }
    }

    void finish() {
        std::set<std::string> names;
        for (Entry& entry : entries_) {
            Variant& v = entry.variant;
            std::string folder = fs::path(v.path).parent_path().filename().string();
            if (folder.empty()) folder = fs::path(entry.label).stem().string();
            if (names.contains(v.name) && !folder.empty()) v.name = folder + "/" + v.name;
            const std::string base = v.name;
            for (int i = 2; !names.insert(v.name).second; ++i) v.name = fmt::format("{} ({})", base, i);
            if (!entry.command.empty()) append(out_.commands, std::vector{entry.command});
            out_.variants.push_back(std::move(v));
        }
        append(out_.commands, commands_);
        if (cpus_.size() > 1)
            note("Results come from several processors: " +
                 join(std::vector<std::string>(cpus_.begin(), cpus_.end()), "; ") + ".");
        if (threads_.size() > 1)
            note(fmt::format("Results were measured with different numbers of threads: {}.",
                             fmt::join(threads_, ", ")));
        if (versions_.size() > 1)
            note(fmt::format("Results were made by several versions of refold: {}.",
                             fmt::join(versions_, ", ")));
        for (const auto& file : runs_.skipped)
            note(fmt::format("{} is no result and was passed over.", file));
        out_.version = options_.version;
        out_.date = utc_now(kDateFormat);
        if (out_.variants.empty()) return;
        const Variant& first = out_.variants.front();
        out_.model = first.name;
        out_.source = first.file;
        out_.hashes = first.hashes;
        out_.title = !options_.title.empty()     ? options_.title
                     : out_.variants.size() == 1 ? first.name
                     : out_.variants.size() == 2
                         ? first.name + " and " + out_.variants.back().name
                         : fmt::format("{} and {} variants", first.name, out_.variants.size() - 1);
    }

    const Runs& runs_;
    const CollectOptions& options_;
    std::vector<Entry> entries_;
    std::vector<std::string> commands_;
    std::set<std::string> cpus_, versions_;
    std::set<int> threads_;
    Comparison out_;
};

}  // namespace

void add_runs(const std::string& path, const std::string& name, Runs& runs) {
    if (!fs::exists(path)) fail(ErrorCode::io, "report", "'{}' does not exist", path);
    if (fs::is_directory(path) && !is_model(path)) {
        add_directory(path, runs);
    } else if (is_model(path) || is_gguf(path)) {
        runs.models.push_back({path, name});
    } else {
        runs.results.push_back(path.ends_with(".jsonl") ? read_training(path) : read_run(path));
    }
}

Variant describe_model(const Model& model, const NamedModel& named) {
    const Cost cost = account(model).model;
    Variant v;
    v.path = named.path;
    fs::path path(named.path);
    if (!path.has_filename()) path = path.parent_path();
    v.file = path.filename().string();
    const bool folder = fs::is_directory(path);
    v.name = !named.name.empty() ? named.name
             : folder            ? model.metadata.string("general.name", v.file)
                                 : path.stem().string();
    v.hashes = hash_files(model);
    v.parameters = cost.parameters;
    uint64_t bytes = 0;
    if (model.source != nullptr) {
        for (const auto& file : model.source->files()) bytes += file->bytes().size();
        v.file_bytes = bytes;
    }
    v.kv_bytes_per_token = cost.kv_bytes_per_token;
    v.topology = topology_map(model);
    const json provenance = provenance_of(model);
    v.recipe = recipes_of(provenance);
    v.origins = origins_of(provenance);
    return v;
}

Comparison collect(const Runs& runs, const CollectOptions& options) {
    return Collector(runs, options).collect();
}

}  // namespace refold
