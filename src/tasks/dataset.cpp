#include "tasks/dataset.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "core/error.h"
#include "core/json_number.h"
#include "core/text.h"
#include "hub/hub.h"
#include "tasks/archive.h"
#include "text/jinja.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Candidate paths below a data directory. A file of the hub may be in a clone of its repository, or alone.
std::vector<std::string> candidates(const DataSource& source, const std::string& split) {
    if (const auto files = source.files.find(split); files != source.files.end()) return files->second;
    std::vector<std::string> names;
    const std::string name = source.hub.substr(source.hub.find('/') + 1);
    if (const auto file = source.hub_files.find(split); file != source.hub_files.end()) {
        names = {source.hub + "/" + file->second, name + "/" + file->second, file->second};
    } else if (const auto rows = source.hub_splits.find(split); rows != source.hub_splits.end()) {
        names = {name + "/" + source.config + "/" + rows->second + ".jsonl",
                 name + "/" + rows->second + ".jsonl"};
    }
    return names;
}

struct DataPath {
    const DataSource* source = nullptr;
    std::string path, directory;
};

DataPath find_in_directory(const TaskFile& task, const std::string& split, const std::string& data) {
    std::vector<std::string> looked, get;
    for (const DataSource& source : task.data) {
        for (const std::string& candidate : candidates(source, split)) {
            const std::string path = fs::path(data) / candidate;
            if (has_data_file(path)) return {&source, path, data};
            looked.push_back("'" + candidate + "'");
        }
        if (!source.get.empty() && std::ranges::find(get, source.get) == get.end()) get.push_back(source.get);
        if (!source.hub.empty() && (source.hub_files.contains(split) || source.hub_splits.contains(split)))
            get.push_back("the hub's " + source.hub + " (run without --data)");
    }
    if (looked.empty())
        fail(ErrorCode::usage, "task", "{}: the task has no split '{}'{}", task.spec.name, split,
             split == task.fewshot_split ? ", which its few-shot examples come from" : "");
    fail(ErrorCode::io, "task", "{}: '{}' lacks the file of split '{}': looked for {}{}", task.spec.name,
         data, split, join(looked, ", "), get.empty() ? "" : " - get it from " + join(get, " or "));
}

// Downloads a file of a repository; for "archive.zip!member" the archive.
std::string hub_file(const std::string& repo, const std::string& path) {
    const std::string file = file_of(path);
    return hub_dataset_file(repo, file) + path.substr(file.size());
}

DataPath find_on_hub(const TaskFile& task, const std::string& split) {
    std::vector<std::string> get;
    for (const DataSource& source : task.data) {
        if (const auto file = source.hub_files.find(split); file != source.hub_files.end())
            return {&source, hub_file(source.hub, file->second), ""};
        if (const auto rows = source.hub_splits.find(split); rows != source.hub_splits.end())
            return {&source, hub_dataset_rows(source.hub, source.config, rows->second), ""};
        for (const std::string& candidate : candidates(source, split)) get.push_back("'" + candidate + "'");
        if (!source.get.empty()) get.push_back("from " + source.get);
    }
    fail(ErrorCode::usage, "task",
         "{}: split '{}' is not on the hub - give a folder with its file by --data DIR: {}", task.spec.name,
         split, get.empty() ? "the task knows of none" : join(get, " "));
}

// The path of a file that belongs to the data.
std::string beside(const TaskFile& task, const DataPath& found, const std::string& name) {
    const std::string& get = found.source->get;
    std::string path = fs::path(found.directory) / name;
    if (!has_data_file(path))
        fail(ErrorCode::io, "task", "{}: '{}' lacks '{}', which belongs to '{}'{}", task.spec.name,
             found.directory, name, found.path, get.empty() ? "" : " - get it from " + get);
    return path;
}

// Adds field "label" to item i: line i of a file beside the data.
void add_labels(std::vector<Record>& items, const std::string& path) {
    const std::string text = read_data_file(path);
    size_t at = 0, i = 0;
    for (; at < text.size(); ++i) {
        const size_t end = std::min(text.find('\n', at), text.size());
        std::string line = text.substr(at, end - at);
        while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
        if (find_invalid_utf8(line) != std::string_view::npos)
            fail(ErrorCode::input, "data", "{} line {}: not UTF-8 text", path, i + 1);
        if (i < items.size()) items[i].fields["label"] = line;
        at = end + 1;
    }
    if (i != items.size())
        fail(ErrorCode::input, "data", "{}: {} labels, expected {}, one for each item", path, i,
             items.size());
}

// Keeps the items whose field `key` is a key of the JSON file, in the file's order.
void keep_only(std::vector<Record>& items, const std::string& key, const std::string& path) {
    std::unordered_map<std::string, size_t> by_key;
    for (size_t i = 0; i < items.size(); ++i) {
        const Json& name = items[i].fields.value(key, Json());
        if (name.is_string()) by_key.emplace(name.get<std::string>(), i);
    }
    std::vector<Record> kept;
    RecordOptions options;
    options.form = RecordForm::json;
    options.key = "key";
    for (const Record& wanted : parse_records(read_data_file(path), options, path)) {
        const Json& name = wanted.fields.at("key");
        const auto found = name.is_string() ? by_key.find(name.get<std::string>()) : by_key.end();
        if (found == by_key.end())
            fail(ErrorCode::input, "data", "{} item {}: {} is no '{}' of the data", path, wanted.line,
                 exact_dump(name), key);
        kept.push_back(items[found->second]);
    }
    items = std::move(kept);
}

void add_fields(std::vector<Record>& items, const DataSource& source, const std::string& label) {
    std::vector<std::pair<std::string, JinjaTemplate>> fields;
    for (const auto& [name, text] : source.fields) fields.emplace_back(name, JinjaTemplate(text));
    const JinjaTemplate where(source.where);
    std::vector<Record> kept;
    for (Record& item : items) {
        try {
            Json added = Json::object();
            for (const auto& [name, field] : fields) added[name] = field.evaluate(item.fields);
            for (const auto& [name, value] : added.items()) item.fields[name] = value;
            if (source.where.empty() || where.evaluate(item.fields) == Json(true))
                kept.push_back(std::move(item));
        } catch (const Error& error) {
            fail(error.code(), "data", "{} line {}: {}", label, item.line, error.what());
        }
    }
    items = std::move(kept);
    if (items.empty())
        fail(ErrorCode::input, "data", "{}: no item is left ('where': {})", label, source.where);
}

}  // namespace

std::vector<Record> make_items(const DataSource& source, const std::string& text, const std::string& label) {
    std::vector<Record> items = parse_records(text, source.form, label);
    add_fields(items, source, label);
    return items;
}

// Whether a source has a file, or rows, of exactly this split.
static bool has_split(const TaskFile& task, const std::string& split, const std::string& data) {
    return std::ranges::any_of(task.data, [&](const DataSource& source) {
        if (data.empty()) return source.hub_files.contains(split) || source.hub_splits.contains(split);
        return std::ranges::any_of(candidates(source, split), [&](const std::string& candidate) {
            return has_data_file(fs::path(data) / candidate);
        });
    });
}

Dataset load_dataset(const TaskFile& task, const std::string& split, const std::string& data) {
    if (const size_t plus = split.find('+'); plus != std::string::npos && !has_split(task, split, data)) {
        Dataset all = load_dataset(task, split.substr(0, plus), data);
        Dataset more = load_dataset(task, split.substr(plus + 1), data);
        std::ranges::move(more.items, std::back_inserter(all.items));
        all.more_files.push_back(more.file);
        std::ranges::move(more.more_files, std::back_inserter(all.more_files));
        return all;
    }
    std::error_code missing;
    if (!data.empty() && !fs::is_directory(data, missing))
        fail(ErrorCode::io, "task", "--data: '{}' is no folder", data);
    const DataPath found = data.empty() ? find_on_hub(task, split) : find_in_directory(task, split, data);
    const DataSource& source = *found.source;
    Dataset dataset{.items = {}, .file = file_of(found.path), .more_files = {}, .label = found.path};
    RecordOptions form = source.form;
    // Rows of the hub's server are always JSON lines.
    const bool own_file = !data.empty() && source.files.contains(split);
    if (!own_file && !source.hub_files.contains(split)) form.form = RecordForm::jsonl;
    dataset.items = parse_records(read_data_file(found.path), form, found.path);
    if (const auto labels = source.labels.find(split); labels != source.labels.end())
        add_labels(dataset.items, beside(task, found, labels->second));
    if (const auto only = source.only.find(split); only != source.only.end())
        keep_only(dataset.items, source.form.key, beside(task, found, only->second));
    add_fields(dataset.items, source, found.path);
    return dataset;
}

}  // namespace refold
