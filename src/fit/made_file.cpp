#include "fit/made_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/recipe.h"
#include "core/error.h"
#include "core/file_hash.h"
#include "core/files.h"
#include "core/json_lines.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "fit/structure.h"
#include "io/gguf.h"
#include "model/load.h"
#include "model/metadata_keys.h"
#include "model/save.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string with_ending(const std::string& file, const char* ending) {
    fs::path path(file);
    if (path.extension() == ".gguf") path.replace_extension();
    return path.string() + ending;
}

// Tells a file apart from those of other recipes, sources and versions.
std::string origin_of(const Model& model) {
    const std::string origin = model.metadata.string(kProvenanceKey, "");
    return sha256_hex(std::as_bytes(std::span(origin)));
}

FitRecord record_of(const Json& json) {
    FitRecord out;
    const Json& plan = json.at("plan");
    out.plan.types = plan.at("types");
    out.plan.bytes = plan.at("bytes");
    out.plan.of_matrices = plan.at("of_matrices");
    out.plan.of_tables = plan.at("of_tables");
    out.plan.resolve = plan.at("resolve");
    out.factors = {json.at("factors").at("matrices"), json.at("factors").at("tables")};
    out.divergence = json.at("divergence");
    out.recipe = json.at("recipe");
    return out;
}

// Nothing when there is none, or when it is no record.
std::optional<Json> read_record(const std::string& file) {
    if (!fs::exists(record_path(file))) return std::nullopt;
    Json json = try_parse_json<Json>(read_stored_text(record_path(file)), nullptr, kLargeJson);
    if (!json.is_object() || !json.contains("inputs") || !json.contains("plan")) return std::nullopt;
    return json;
}

bool is_written_model(const std::string& file) {
    try {
        return GgufFile::open(file)->metadata().has(kVersionKey);
    } catch (const Error&) {  // another kind of file
        return false;
    }
}

// As its record has it or, of a run that was killed between the two, as to_yaml() writes it.
bool is_written_recipe(const std::string& path, const std::optional<Json>& record) {
    try {
        const std::string text = read_text_file(path);
        return (record && record->contains("recipe") && record->at("recipe") == text) ||
               to_yaml(parse_recipe(text, path)) == text;
    } catch (const Error&) {
        return false;
    }
}

// Throws Error(usage) naming what has the name of a file that is to be written, and is not refold's.
void check_replaceable(const std::string& file) {
    const auto record = read_record(file);
    std::string others;
    if (fs::exists(file) && !is_written_model(file)) others = file;
    if (const std::string recipe = recipe_path(file);
        fs::exists(recipe) && !is_written_recipe(recipe, record))
        others = recipe;
    if (fs::exists(record_path(file)) && !record) others = record_path(file);
    if (!others.empty())
        fail(ErrorCode::usage, "fit",
             "'{}' would be replaced, and refold has not written it - move it away, or choose another name",
             others);
}

}  // namespace

std::string recipe_path(const std::string& file) { return with_ending(file, ".recipe.yaml"); }
std::string record_path(const std::string& file) { return with_ending(file, ".fit.json"); }

std::string fit_inputs(const Model& model, const Calibration& calibration, const FitOptions& options,
                       uint64_t bytes) {
    Json files = Json::array();
    if (model.source)
        for (const auto& file : model.source->files()) files.push_back(remembered_sha256(file->path()));
    return Json{{"refold", options.version},
                {"model", files},
                {"calibration", calibration.hash},
                {"tokens", calibration.options.tokens},
                {"length", calibration.options.length},
                {"probe_tokens", options.probe_tokens},
                {"rows", options.layout == RowLayout::whole_blocks ? "whole blocks" : "or folded"},
                {"structure", options.structure.empty() ? "" : to_yaml(recipe_of_steps(options.structure))},
                {"bytes", bytes}}
        .dump();
}

std::optional<FitRecord> made_before(const std::string& file, const std::string& inputs, bool overwrite) {
    auto json = read_record(file);
    if (json && json->at("inputs") != parse_json<Json>(inputs, "fit", "the inputs")) json.reset();
    const bool there = fs::exists(file);
    try {
        if (json && there && json->at("origin") == origin_of(load_model(file))) return record_of(*json);
    } catch (const nlohmann::json::exception&) {  // a changed record
    } catch (const Error&) {                      // no model
    }
    if (!overwrite && (there || (!json && fs::exists(record_path(file)))))
        fail(ErrorCode::usage, "fit",
             "'{}' is there and was made from something else - choose another name, or give --overwrite",
             there ? file : record_path(file));
    check_replaceable(file);
    return std::nullopt;
}

void write_made(const std::string& file, const std::string& inputs, const FitRecord& record,
                const Model& model) {
    const Json json = {
        {"inputs", parse_json<Json>(inputs, "fit", "the inputs")},
        {"plan",
         {{"types", record.plan.types},
          {"bytes", record.plan.bytes},
          {"of_matrices", record.plan.of_matrices},
          {"of_tables", record.plan.of_tables},
          {"resolve", record.plan.resolve}}},
        {"factors", {{"matrices", record.factors.matrices}, {"tables", record.factors.tables}}},
        {"divergence", record.divergence},
        {"recipe", record.recipe},
        {"origin", origin_of(model)}};
    // In this order an interrupted run leaves a record without its file, never the other way round.
    write_file(record_path(file), json.dump(1) + "\n");
    write_file(recipe_path(file), record.recipe);
    save_model(model, file, true);
}

}  // namespace refold
