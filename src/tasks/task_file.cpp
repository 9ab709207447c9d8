#include "tasks/task_file.h"

#include "core/error.h"
#include "core/text.h"
#include "io/yaml.h"

namespace refold {
namespace {

using Handler = std::function<void(const YAML::Node&)>;

const std::map<std::string, Haystack> kHaystacks = {
    {"repeat", Haystack::repeat}, {"text", Haystack::text}, {"needles", Haystack::needles}};
const std::map<std::string, NeedleText> kNeedleTexts = {
    {"words", NeedleText::words}, {"numbers", NeedleText::numbers}, {"uuids", NeedleText::uuids}};

const std::map<std::string, TaskOutput> kOutputs = {{"multiple_choice", TaskOutput::multiple_choice},
                                                    {"loglikelihood", TaskOutput::loglikelihood},
                                                    {"generate_until", TaskOutput::generate_until},
                                                    {"masked_lm", TaskOutput::masked_lm},
                                                    {"label_probability", TaskOutput::label_probability}};

class Reader {
public:
    Reader(const YamlFile& file, std::string subject, std::string subject_name)
        : file_(file), subject_(std::move(subject)), subject_name_(std::move(subject_name)) {}

    TaskFile read(const YAML::Node& root) {
        task_.label = file_.label();
        const YamlFile::Readers readers = {
            {"task", text(task_.spec.name)},
            {"aliases", texts(task_.aliases)},
            {"group", text(task_.spec.group)},
            {"subgroups", [&](const YAML::Node& node) { read_subgroups(node, root); }},
            {"subjects", [](const YAML::Node&) {}},  // read earlier: each makes a task
            {"variants", [](const YAML::Node&) {}},  // read later: each makes a task
            {"version", text(task_.spec.version)},
            {"about", text(task_.about)},
            {"source", text(task_.source)},
            {"licence", text(task_.licence)},
            {"output", [this](const YAML::Node& node) { read_output(node); }},
            {"metrics", texts(task_.spec.metrics)},
            {"data", [this](const YAML::Node& node) { read_data(node); }},
            {"split", text(task_.split)},
            {"last", [this](const YAML::Node& node) { task_.last = part(node); }},
            {"consistent", [this](const YAML::Node& node) { read_consistent(node); }},
            {"fewshot", [this](const YAML::Node& node) { read_fewshot(node); }},
            {"generator", text(task_.generator)},
            {"needle", [this](const YAML::Node& node) { read_needle(node); }},
            {"description", text(task_.spec.description)},
            {"prompt", text(task_.prompt)},
            {"prompts", text(task_.prompt_list)},
            {"choices", [this](const YAML::Node& node) { read_choices(node); }},
            {"gold", text(task_.gold)},
            {"target", text(task_.target)},
            {"references", text(task_.references)},
            {"target_delimiter", text(task_.spec.target_delimiter)},
            {"fewshot_delimiter", text(task_.spec.fewshot_delimiter)},
            {"generation", [this](const YAML::Node& node) { read_generation(node); }},
        };
        file_.read_map(root, "a task", readers);
        check(root);
        return std::move(task_);
    }

private:
    std::string at(const YAML::Node& node) const { return file_.at(node); }

    std::string scalar(const YAML::Node& node) const {
        if (!node.IsScalar()) fail(ErrorCode::input, "task", "{}: expected a single value", at(node));
        std::string value = node.Scalar();
        if (subject_.empty()) return value;
        for (const auto& [mark, by] :
             {std::pair<std::string, std::string>{"<subject>", subject_},
              std::pair<std::string, std::string>{"<subject name>", subject_name_}}) {
            for (size_t at = 0; (at = value.find(mark, at)) != std::string::npos; at += by.size())
                value.replace(at, mark.size(), by);
        }
        return value;
    }

    Handler text(std::string& to) const {
        return [this, &to](const YAML::Node& node) { to = scalar(node); };
    }
    Handler texts(std::vector<std::string>& to) const {
        return [this, &to](const YAML::Node& node) { to = list(node); };
    }
    // A mapping from splits to values.
    Handler by_split(std::map<std::string, std::string>& to) const {
        return [this, &to](const YAML::Node& node) {
            for (const auto& [split, values] : lists(node)) to[split] = values.front();
        };
    }

    // A list of values, or one value.
    std::vector<std::string> list(const YAML::Node& node) const {
        if (node.IsScalar()) return {scalar(node)};
        if (!node.IsSequence()) fail(ErrorCode::input, "task", "{}: expected a list", at(node));
        std::vector<std::string> values;
        for (const auto& entry : node) values.push_back(scalar(entry));
        return values;
    }

    std::map<std::string, std::vector<std::string>> lists(const YAML::Node& node) const {
        if (!node.IsMap()) fail(ErrorCode::input, "task", "{}: expected a mapping from splits", at(node));
        std::map<std::string, std::vector<std::string>> values;
        for (const auto& entry : node) {
            std::vector<std::string>& of_split = values[scalar(entry.first)] = list(entry.second);
            if (of_split.empty()) fail(ErrorCode::input, "task", "{}: an empty list", at(entry.second));
        }
        return values;
    }

    int64_t number(const YAML::Node& node) const {
        int64_t value = 0;
        if (!node.IsScalar() || !YAML::convert<int64_t>::decode(node, value) || value < 0)
            fail(ErrorCode::usage, "task", "{}: expected a number, 0 or more", at(node));
        return value;
    }

    double part(const YAML::Node& node) const {
        double value = 0;
        if (!node.IsScalar() || !YAML::convert<double>::decode(node, value) || !(value > 0) || value > 1)
            fail(ErrorCode::usage, "task", "{}: expected a part, above 0 and at most 1", at(node));
        return value;
    }

    bool flag(const YAML::Node& node) const {
        bool value = false;
        if (!node.IsScalar() || !YAML::convert<bool>::decode(node, value))
            fail(ErrorCode::usage, "task", "{}: expected true or false", at(node));
        return value;
    }

    void read_output(const YAML::Node& node) {
        const std::string word = scalar(node);
        std::vector<std::string> known;
        for (const auto& [name, output] : kOutputs) {
            known.push_back(name);
            if (name == word) task_.spec.output = output;
        }
        if (!kOutputs.contains(word))
            fail(ErrorCode::usage, "task", "{}: unknown output '{}'; {}", at(node), word,
                 suggestion(word, known));
    }

    void read_data(const YAML::Node& node) {
        if (!node.IsSequence()) fail(ErrorCode::input, "task", "{}: expected a list of sources", at(node));
        for (const auto& entry : node) task_.data.push_back(read_source(entry));
    }

    DataSource read_source(const YAML::Node& node) const {
        DataSource source;
        file_.read_map(
            node, "a source",
            {
                {"files", [&](const YAML::Node& n) { source.files = lists(n); }},
                {"get", text(source.get)},
                {"hub", text(source.hub)},
                {"config", text(source.config)},
                {"hub_files", by_split(source.hub_files)},
                {"splits", by_split(source.hub_splits)},
                {"form",
                 [&](const YAML::Node& n) { source.form.form = parse_record_form(scalar(n), at(n)); }},
                {"columns", texts(source.form.columns)},
                {"items", text(source.form.items)},
                {"key", text(source.form.key)},
                {"unfold", texts(source.form.unfold)},
                {"labels", by_split(source.labels)},
                {"only", by_split(source.only)},
                {"where", text(source.where)},
                {"fields",
                 [&](const YAML::Node& n) {
                     if (!n.IsMap()) fail(ErrorCode::input, "task", "{}: expected a mapping", at(n));
                     for (const auto& field : n)
                         source.fields.emplace_back(scalar(field.first), scalar(field.second));
                 }},
            });
        if (source.files.empty() && source.hub.empty())
            fail(ErrorCode::input, "task", "{}: a source needs 'files' or 'hub'", at(node));
        if (!source.hub.empty() && source.hub_files.empty() && source.hub_splits.empty())
            fail(ErrorCode::input, "task", "{}: a hub's data set needs 'hub_files' or 'splits'", at(node));
        return source;
    }

    void read_consistent(const YAML::Node& node) {
        file_.read_map(node, "'consistent'", {{"by", text(task_.alike)}, {"same", text(task_.agreeing)}});
        if (task_.alike.empty() || task_.agreeing.empty())
            fail(ErrorCode::input, "task", "{}: 'consistent' needs the fields 'by' and 'same'", at(node));
    }

    void read_needle(const YAML::Node& node) {
        const auto word = [this](auto& to, const auto& words) {
            return [this, &to, &words](const YAML::Node& n) {
                std::vector<std::string> known;
                for (const auto& [name, value] : words) {
                    known.push_back(name);
                    if (name == scalar(n)) to = value;
                }
                if (!words.contains(scalar(n)))
                    fail(ErrorCode::usage, "task", "{}: unknown word '{}'; {}", at(n), scalar(n),
                         suggestion(scalar(n), known));
            };
        };
        const auto count = [this](int64_t& to) {
            return [this, &to](const YAML::Node& n) {
                to = number(n);
                if (to < 1 || to > 16) fail(ErrorCode::usage, "task", "{}: expected 1 to 16", at(n));
            };
        };
        NeedleKind& needle = task_.needle;
        file_.read_map(node, "'needle'",
                       {{"haystack", word(needle.haystack, kHaystacks)},
                        {"keys", word(needle.keys, kNeedleTexts)},
                        {"values", word(needle.values, kNeedleTexts)},
                        {"needles", count(needle.needles)},
                        {"values_per_key", count(needle.values_per_key)},
                        {"asked", count(needle.asked)}});
    }

    void read_fewshot(const YAML::Node& node) {
        file_.read_map(node, "'fewshot'",
                       {{"split", text(task_.fewshot_split)},
                        {"shots", [&](const YAML::Node& n) { task_.spec.shots = number(n); }},
                        {"first", [&](const YAML::Node& n) { task_.first_n = flag(n); }},
                        {"exclude_item", [&](const YAML::Node& n) { task_.exclude_item = flag(n); }}});
    }

    void read_choices(const YAML::Node& node) {
        if (node.IsScalar()) {
            task_.choice_list = scalar(node);
        } else {
            task_.choices = list(node);
        }
    }

    void read_generation(const YAML::Node& node) {
        file_.read_map(
            node, "'generation'",
            {{"until", texts(task_.spec.generation.until)},
             {"max_tokens", [&](const YAML::Node& n) { task_.spec.generation.max_tokens = number(n); }},
             {"masks", [&](const YAML::Node& n) { task_.spec.generation.masks = number(n); }}});
    }

    void check(const YAML::Node& root) const {
        const auto need = [&](bool given, const char* key) {
            if (!given) fail(ErrorCode::input, "task", "{}: the key '{}' is missing", file_.label(), key);
        };
        need(!task_.spec.name.empty(), "task");
        need(!task_.spec.metrics.empty(), "metrics");
        const bool choices = !task_.choices.empty() || !task_.choice_list.empty();
        switch (task_.spec.output) {
            case TaskOutput::loglikelihood: need(!task_.target.empty(), "target"); break;
            case TaskOutput::generate_until:
                need(!task_.target.empty() || !task_.references.empty(), "references");
                break;
            default:
                need(choices || !task_.prompt_list.empty(), "choices");
                need(!task_.gold.empty(), "gold");
                if (!task_.prompt_list.empty()) need(!task_.target.empty(), "target");
        }
        // A prompt may be empty: the choices then have no context.
        need(root["prompt"].IsDefined() || !task_.prompt_list.empty(), "prompt");
        if (!task_.generator.empty()) {
            if (task_.generator != "needle")
                fail(ErrorCode::usage, "task", "{}: unknown generator '{}'; known: needle", file_.label(),
                     task_.generator);
            if (task_.needle.haystack == Haystack::text) {
                need(!task_.data.empty(), "data");
                need(!task_.split.empty(), "split");
            }
            return;
        }
        need(!task_.data.empty(), "data");
        need(!task_.split.empty(), "split");
    }

    void read_subgroups(const YAML::Node& node, const YAML::Node& root) {
        const YAML::Node subjects = root["subjects"];
        if (!node.IsMap() || !subjects.IsDefined() || !root["group"].IsDefined())
            fail(ErrorCode::input, "task",
                 "{}: 'subgroups' must map names to lists of subjects, below a group", at(node));
        for (const auto& subgroup : node) {
            for (const std::string& subject : list(subgroup.second)) {
                if (!subjects[subject].IsDefined())
                    fail(ErrorCode::input, "task", "{}: '{}' is none of the subjects", at(subgroup.second),
                         subject);
                if (subject == subject_) task_.spec.subgroup = scalar(subgroup.first);
            }
        }
    }

    const YamlFile& file_;
    std::string subject_, subject_name_;
    TaskFile task_;
};

// The mapping of a variant: the task's, with the variant's keys in place of its own.
YAML::Node with_keys_of(const YAML::Node& root, const YAML::Node& name, const YAML::Node& own,
                        const YamlFile& file) {
    file.check_map(own, "a variant");
    YAML::Node merged(YAML::NodeType::Map);
    merged["task"] = name;
    for (const auto& entry : root) {
        const std::string key = entry.first.Scalar();
        if (key != "task" && key != "aliases" && key != "variants" && !own[key].IsDefined())
            merged.force_insert(entry.first, entry.second);
    }
    for (const auto& entry : own) merged.force_insert(entry.first, entry.second);
    return merged;
}

// One task per subject, or one task.
void read_tasks(const YAML::Node& root, const YamlFile& file, std::vector<TaskFile>& tasks) {
    const YAML::Node subjects = root["subjects"];
    if (!subjects.IsDefined()) {
        tasks.push_back(Reader(file, "", "").read(root));
        return;
    }
    if (!subjects.IsMap() || subjects.size() == 0)
        fail(ErrorCode::input, "task", "{}: 'subjects' must map subjects to their names", file.at(subjects));
    for (const auto& subject : subjects)
        tasks.push_back(
            Reader(file, file.scalar(subject.first, "subjects"), file.scalar(subject.second, "subjects"))
                .read(root));
}

}  // namespace

std::vector<TaskFile> parse_task_file(const std::string& text, const std::string& label) {
    const YamlFile file("task", label);
    const YAML::Node root = parse_yaml(text, "task", label);
    if (!root.IsMap()) fail(ErrorCode::input, "task", "{}: expected one YAML mapping", label);
    std::vector<TaskFile> tasks;
    read_tasks(root, file, tasks);
    const YAML::Node variants = root["variants"];
    if (!variants.IsDefined()) return tasks;
    if (!variants.IsMap())
        fail(ErrorCode::input, "task", "{}: 'variants' must map names to keys", file.at(variants));
    for (const auto& variant : variants)
        read_tasks(with_keys_of(root, variant.first, variant.second, file), file, tasks);
    return tasks;
}

}  // namespace refold
