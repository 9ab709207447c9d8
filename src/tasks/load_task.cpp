#include "tasks/load_task.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include "core/error.h"
#include "core/files.h"
#include "core/json_number.h"
#include "core/text.h"
#include "tasks/builtin.h"
#include "tasks/dataset.h"
#include "tasks/fewshot.h"
#include "tasks/needle.h"
#include "text/jinja.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

struct Catalogue {
    std::map<std::string, TaskFile> tasks;
    std::map<std::string, std::vector<std::string>> others;  // groups and other names -> names of tasks
};

const Catalogue& catalogue() {
    static const Catalogue built_in = [] {
        Catalogue c;
        for (const auto& [name, text] : builtin_task_files()) {
            for (TaskFile& task : parse_task_file(std::string(text), std::string(name) + ".yaml")) {
                const std::string& own = task.spec.name;
                for (const std::string& alias : task.aliases) c.others[alias].push_back(own);
                for (const std::string& group : {task.spec.group, task.spec.subgroup})
                    if (!group.empty()) c.others[group].push_back(own);
                c.tasks.emplace(own, std::move(task));
            }
        }
        return c;
    }();
    return built_in;
}

bool is_path(const std::string& name) {
    return name.find(".yaml") != std::string::npos || name.find(".yml") != std::string::npos ||
           name.find('/') != std::string::npos;
}

// Splits "FILE#task" into its two parts.
std::pair<std::string, std::string> split_path(const std::string& name) {
    const size_t mark = name.rfind('#');
    if (mark == std::string::npos || name.find('/', mark) != std::string::npos) return {name, ""};
    return {name.substr(0, mark), name.substr(mark + 1)};
}

[[noreturn]] void fail_unknown(const std::string& name) {
    const std::string near = nearest(name, task_names());
    std::vector<std::string> known;  // groups instead of their subjects
    for (const auto& [task, file] : catalogue().tasks) {
        const std::string& shown = file.spec.group.empty() ? task : file.spec.group;
        if (std::ranges::find(known, shown) == known.end()) known.push_back(shown);
    }
    fail(ErrorCode::usage, "task", "there is no task '{}'{}; known: {}, and paths of YAML files", name,
         near.empty() ? "" : "; did you mean '" + near + "'?", join(known, ", "));
}

// The compiled templates of a task.
class Templates {
public:
    explicit Templates(const TaskFile& task)
        : task_(task),
          prompt_(task.prompt),
          choice_list_(task.choice_list),
          prompt_list_(task.prompt_list),
          gold_(task.gold),
          target_(task.target),
          references_(task.references) {
        for (const std::string& choice : task.choices) choices_.emplace_back(choice);
    }

    TaskItem item(const Record& record, const std::string& label) const {
        try {
            return fill(record.fields);
        } catch (const Error& error) {
            fail(error.code(), "data", "{} line {}: {}", label, record.line, error.what());
        }
    }

    // A record as an example, with its right answer.
    FewShot shot(const Record& record, const std::string& label) const {
        const TaskItem filled = item(record, label);
        const bool generates = task_.spec.output == TaskOutput::generate_until;
        if (generates)
            return {filled.prompts[0], task_.target.empty() ? filled.references[0] : target(record.fields)};
        if (task_.spec.output == TaskOutput::loglikelihood) return {filled.prompts[0], filled.choices[0]};
        const auto gold = static_cast<size_t>(filled.gold[0]);
        if (filled.prompts.size() > 1) return {filled.prompts[gold], filled.choices[0]};
        return {filled.prompts[0], filled.choices[gold]};
    }

private:
    TaskItem fill(const Json& doc) const {
        TaskItem item;
        item.doc = doc;
        switch (task_.spec.output) {
            case TaskOutput::loglikelihood:
                item.prompts = {prompt_.render(doc)};
                item.choices = {target(doc)};
                if (item.choices[0].empty()) fail(ErrorCode::input, "task", "the target is empty");
                item.gold = {0};
                break;
            case TaskOutput::generate_until:
                item.prompts = {prompt_.render(doc)};
                item.references =
                    texts(task_.references.empty() ? Json(target(doc)) : references_.evaluate(doc));
                break;
            default:
                if (task_.prompt_list.empty()) {
                    item.prompts = {prompt_.render(doc)};
                    item.choices = choices(doc);
                    item.gold = gold(doc, item.choices);
                } else {
                    item.prompts = texts(prompt_list_.evaluate(doc));
                    item.choices = {target(doc)};
                    item.gold = gold(doc, item.prompts);
                }
        }
        return item;
    }

    std::string target(const Json& doc) const { return target_.render(doc); }

    static std::vector<std::string> texts(const Json& value) {
        std::vector<std::string> out;
        for (const Json& entry : value.is_array() ? value : Json::array({value})) {
            if (!entry.is_string()) fail(ErrorCode::input, "task", "expected texts, got {}", shown(value));
            out.push_back(entry.get<std::string>());
        }
        if (out.empty()) fail(ErrorCode::input, "task", "expected at least one text, got an empty list");
        return out;
    }

    std::vector<std::string> choices(const Json& doc) const {
        if (!task_.choice_list.empty()) return texts(choice_list_.evaluate(doc));
        std::vector<std::string> out;
        for (const JinjaTemplate& choice : choices_) out.push_back(choice.render(doc));
        return out;
    }

    // A number, also as text, is the index of a choice from 0; other text is one of the choices.
    std::vector<int64_t> gold(const Json& doc, std::span<const std::string> choices) const {
        const Json value = gold_.evaluate(doc);
        std::vector<int64_t> indices;
        for (const Json& entry : value.is_array() ? value : Json::array({value})) {
            int64_t index = -1;
            if (entry.is_boolean()) {
                index = entry.get<bool>() ? 1 : 0;
            } else if (entry.is_number_integer()) {
                index = entry.get<int64_t>();
            } else if (entry.is_string()) {
                const auto text = entry.get<std::string>();
                const bool digits = !text.empty() && text.size() < 10 &&
                                    text.find_first_not_of("0123456789") == std::string::npos;
                const auto found = std::ranges::find(choices, text);
                index = digits ? std::stoll(text) : found == choices.end() ? -1 : found - choices.begin();
            }
            if (index < 0 || index >= static_cast<int64_t>(choices.size()))
                fail(ErrorCode::input, "task",
                     "the item has no right choice: got {}, expected 0 to {} or one of the {} "
                     "choices",
                     shown(value), choices.size() - 1, choices.size());
            indices.push_back(index);
        }
        if (indices.empty())
            fail(ErrorCode::input, "task", "the item has no right choice: got an empty list");
        return indices;
    }

    static std::string shown(const Json& value) {
        const std::string text = exact_dump(value);
        return text.size() > 80 ? text.substr(0, 80) + "..." : text;
    }

    const TaskFile& task_;
    JinjaTemplate prompt_, choice_list_, prompt_list_, gold_, target_, references_;
    std::vector<JinjaTemplate> choices_;
};

Dataset generate(const TaskFile& task, const TaskOptions& options) {
    NeedleOptions needle;
    needle.kind = task.needle;
    needle.length = options.length;
    needle.count_tokens = options.count_tokens;
    if (options.limit > 0) needle.items = std::min(needle.items, options.limit);
    Dataset out{.items = {}, .file = "", .more_files = {}, .label = task.spec.name};
    if (task.needle.haystack == Haystack::text) {
        const Dataset text = load_dataset(task, task.split, options.data);
        out.file = text.file;
        for (const Record& record : text.items) {
            const Json& part = record.fields.value("text", Json());
            if (!part.is_string())
                fail(ErrorCode::input, "data", "{} line {}: expected a field 'text'", text.label,
                     record.line);
            needle.text += (needle.text.empty() ? "" : " ") + part.get<std::string>();
        }
    }
    out.items = make_needles(needle);
    return out;
}

// One item of those that agree in field `alike`, and none where `agreeing` differs among them.
void keep_consistent(std::vector<Record>& items, const TaskFile& task, const std::string& label) {
    const auto value = [&](const Record& item, const std::string& field) {
        if (!item.fields.contains(field))
            fail(ErrorCode::input, "data", "{} line {}: no field '{}' ('consistent')", label, item.line,
                 field);
        return exact_dump(item.fields.at(field));
    };
    std::map<std::string, std::string> first;
    std::set<std::string> conflicts;
    for (const Record& item : items) {
        const auto [seen, fresh] = first.try_emplace(value(item, task.alike), value(item, task.agreeing));
        if (!fresh && seen->second != value(item, task.agreeing)) conflicts.insert(seen->first);
    }
    std::set<std::string> kept;
    std::erase_if(items, [&](const Record& item) {
        const std::string own = value(item, task.alike);
        return conflicts.contains(own) || !kept.insert(own).second;
    });
    if (items.empty()) fail(ErrorCode::input, "data", "{}: no item is left ('consistent')", label);
}

}  // namespace

std::vector<std::string> task_names() {
    std::vector<std::string> names;
    for (const auto& [name, task] : catalogue().tasks) names.push_back(name);
    for (const auto& [name, tasks] : catalogue().others) names.push_back(name);
    std::ranges::sort(names);
    return names;
}

std::vector<std::string> expand_tasks(const std::string& name_or_path) {
    const auto& [tasks, others] = catalogue();
    if (tasks.contains(name_or_path)) return {name_or_path};
    if (const auto other = others.find(name_or_path); other != others.end()) return other->second;
    if (!is_path(name_or_path)) fail_unknown(name_or_path);
    const auto [path, wanted] = split_path(name_or_path);
    std::vector<std::string> names;
    const std::vector<TaskFile> found = parse_task_file(read_text_file(path), path);
    for (const TaskFile& task : found) {
        if (wanted.empty() || task.spec.name == wanted)
            names.push_back(found.size() == 1 ? path : path + "#" + task.spec.name);
    }
    if (names.empty()) fail(ErrorCode::usage, "task", "'{}' has no task '{}'", path, wanted);
    return names;
}

TaskFile find_task(const std::string& name_or_path) {
    const std::vector<std::string> names = expand_tasks(name_or_path);
    if (names.size() != 1)
        fail(ErrorCode::usage, "task", "'{}' is a group of {} tasks, expected one", name_or_path,
             names.size());
    if (const auto task = catalogue().tasks.find(names[0]); task != catalogue().tasks.end())
        return task->second;
    const auto [path, wanted] = split_path(names[0]);
    for (TaskFile& task : parse_task_file(read_text_file(path), path)) {
        if (wanted.empty() || task.spec.name == wanted) return std::move(task);
    }
    fail_unknown(name_or_path);
}

Task load_task(const std::string& name_or_path, const TaskOptions& options) {
    const TaskFile file = find_task(name_or_path);
    Task task;
    task.spec = file.spec;
    if (options.shots) task.spec.shots = *options.shots;
    if (task.spec.shots < 0)
        fail(ErrorCode::usage, "task", "--shots: got {}, expected 0 or more", task.spec.shots);
    const Templates templates(file);

    const bool generated = !file.generator.empty();
    if (generated && task.spec.shots > 0)
        fail(ErrorCode::usage, "task", "{} has no examples", task.spec.name);
    Dataset data = generated ? generate(file, options) : load_dataset(file, file.split, options.data);
    if (!file.alike.empty()) keep_consistent(data.items, file, data.label);
    // The items before the last ones, whole (LASER's int(0.8 n)).
    const auto before = static_cast<int64_t>((1 - file.last) * static_cast<double>(data.items.size()) + 1e-9);
    Dataset examples;
    const bool own = file.fewshot_split.empty() || file.fewshot_split == file.split;
    if (task.spec.shots > 0 && !own) examples = load_dataset(file, file.fewshot_split, options.data);
    const Dataset& pool = own ? data : examples;
    FewShotSampler sampler(pool.items,
                           {.shots = task.spec.shots,
                            .seed = options.seed,
                            .first_n = file.first_n,
                            .exclude_item = file.exclude_item},
                           "'" + pool.label + "'");

    task.original = static_cast<int64_t>(data.items.size()) - before;
    const int64_t count = options.limit > 0 ? std::min(options.limit, task.original) : task.original;
    std::map<size_t, FewShot> shots;  // examples of the pool filled in so far
    for (int64_t i = 0; i < count; ++i) {
        const Record& record = data.items[static_cast<size_t>(before + i)];
        TaskItem& item = task.items.emplace_back(templates.item(record, data.label));
        item.doc_id = before + i;
        for (const size_t example : sampler.draw(record.fields)) {
            auto [shot, fresh] = shots.try_emplace(example);
            if (fresh) shot->second = templates.shot(pool.items[example], pool.label);
            item.shots.push_back(shot->second);
        }
    }
    task.data_file = data.file;
    DataHashes own_hashes;
    DataHashes& hashes = options.hashes != nullptr ? *options.hashes : own_hashes;
    if (!data.file.empty()) task.data_sha256 = hashes.of(data.file);
    for (const std::string& more : data.more_files) {
        if (more != data.file) task.more_files.emplace_back(more, hashes.of(more));
    }
    if (!examples.file.empty() && examples.file != data.file) {
        task.fewshot_file = examples.file;
        task.fewshot_sha256 = hashes.of(examples.file);
    }
    return task;
}

}  // namespace refold
