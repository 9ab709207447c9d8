#include "tasks/records.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/json_text.h"
#include "core/text.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

const std::array<std::pair<const char*, RecordForm>, 5> kForms = {
    {{"jsonl", RecordForm::jsonl},
     {"json", RecordForm::json},
     {"csv", RecordForm::csv},
     {"tsv", RecordForm::tsv},
     {"hellaswag_text", RecordForm::hellaswag_text}}};

class Parser {
public:
    Parser(std::string_view text, const RecordOptions& options, const std::string& label)
        : text_(text), options_(options), label_(label) {}

    std::vector<Record> parse() {
        if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
        if (const size_t bad = find_invalid_utf8(text_); bad != std::string_view::npos) {
            const auto line =
                std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
            fail(ErrorCode::input, "data", "{} line {}: not UTF-8 text", label_, line + 1);
        }
        switch (options_.form) {
            case RecordForm::jsonl: read_jsonl(); break;
            case RecordForm::json: read_json(); break;
            case RecordForm::csv: read_table(','); break;
            case RecordForm::tsv: read_table('\t'); break;
            case RecordForm::hellaswag_text: read_hellaswag(); break;
        }
        if (!options_.unfold.empty()) unfold();
        if (records_.empty()) fail(ErrorCode::input, "data", "{}: no items in it", label_);
        return std::move(records_);
    }

private:
    // The next line without its end; false at the end of the text.
    bool next_line(std::string_view& line) {
        if (at_ >= text_.size()) return false;
        const size_t end = std::min(text_.find('\n', at_), text_.size());
        line = text_.substr(at_, end - at_);
        if (line.ends_with('\r')) line.remove_suffix(1);
        at_ = end + 1;
        ++line_;
        return true;
    }

    [[noreturn]] void fail_here(const std::string& what) const {
        fail(ErrorCode::input, "data", "{} line {}: {}", label_, line_, what);
    }

    Json parsed(std::string_view text) const {
        std::string problem;
        JsonLimits limits = kLargeJson;
        limits.big_integers = true;
        Json value = try_parse_json<Json>(text, &problem, limits);
        if (!problem.empty()) fail_here("not valid JSON: " + problem);
        return value;
    }

    void read_jsonl() {
        for (std::string_view line; next_line(line);) {
            if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
            Json fields = parsed(line);
            if (!fields.is_object())
                fail_here(fmt::format("expected a JSON object, got {}", fields.type_name()));
            records_.push_back({std::move(fields), line_});
        }
    }

    void read_json() {
        line_ = 1;
        Json document = parsed(text_);
        for (size_t at = 0; at < options_.items.size();) {
            const size_t dot = std::min(options_.items.find('.', at), options_.items.size());
            const std::string name = options_.items.substr(at, dot - at);
            if (!document.is_object() || !document.contains(name))
                fail(ErrorCode::input, "data", "{}: the document has no member '{}'", label_, options_.items);
            document = Json(document[name]);
            at = dot + 1;
        }
        if (!document.is_array() && !document.is_object())
            fail(ErrorCode::input, "data", "{}: expected a list of items, got {}", label_,
                 document.type_name());
        size_t number = 0;
        for (const auto& [name, entry] : document.items()) {
            ++number;
            Json fields = entry;
            if (!fields.is_object()) {
                // The entries may be plain values: {"123": "yes"}.
                if (document.is_array() || options_.key.empty())
                    fail(ErrorCode::input, "data", "{} item {}: expected an object, got {}", label_, number,
                         fields.type_name());
                fields = Json{{"value", entry}};
            }
            if (document.is_object() && !options_.key.empty()) fields[options_.key] = name;
            records_.push_back({std::move(fields), number});
        }
    }

    // One row of a table; false at the end.
    bool next_row(char separator, std::vector<std::string>& row, size_t& first_line) {
        row.clear();
        if (at_ >= text_.size()) return false;
        first_line = ++line_;
        std::string cell;
        bool quoted = false, was_quoted = false;
        for (; at_ < text_.size(); ++at_) {
            const char c = text_[at_];
            if (quoted) {
                if (c == '"' && at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
                    cell += '"';
                    ++at_;
                } else if (c == '"') {
                    quoted = false;
                } else {
                    line_ += c == '\n' ? 1 : 0;
                    cell += c;
                }
            } else if (c == '"' && cell.empty() && !was_quoted && separator == ',') {
                quoted = was_quoted = true;
            } else if (c == separator) {
                row.push_back(std::move(cell));
                cell.clear();
                was_quoted = false;
            } else if (c == '\n') {
                break;
            } else if (c != '\r' || at_ + 1 >= text_.size() || text_[at_ + 1] != '\n') {
                cell += c;
            }
        }
        if (quoted) {
            line_ = first_line;
            fail_here("a quoted cell does not end");
        }
        ++at_;
        row.push_back(std::move(cell));
        return true;
    }

    void read_table(char separator) {
        std::vector<std::string> row, columns = options_.columns;
        size_t line = 0;
        while (next_row(separator, row, line)) {
            if (row.size() == 1 && row[0].empty()) continue;
            if (columns.empty()) {
                columns = row;
                continue;
            }
            if (row.size() != columns.size()) {
                line_ = line;
                fail_here(fmt::format("{} columns, expected {} ({})", row.size(), columns.size(),
                                      join(columns, ", ")));
            }
            Json fields = Json::object();
            for (size_t i = 0; i < row.size(); ++i) fields[columns[i]] = std::move(row[i]);
            records_.push_back({std::move(fields), line});
        }
    }

    void read_hellaswag() {
        for (std::string_view context; next_line(context);) {
            if (context.empty()) continue;
            const size_t first = line_;
            const size_t colon = context.find(": ");
            if (colon == std::string_view::npos) fail_here("expected 'activity: context'");
            std::string_view label, ending;
            if (!next_line(label) || label.size() != 1 || label[0] < '0' || label[0] > '3')
                fail_here("expected a label from 0 to 3 in the second line of an item");
            Json fields = {{"activity_label", context.substr(0, colon)}};
            split_context(context.substr(colon + 2), fields);
            Json endings = Json::array();
            while (endings.size() < 4 && next_line(ending)) endings.push_back(ending);
            if (endings.size() < 4) fail_here("the last item has fewer than four endings");
            fields["endings"] = std::move(endings);
            fields["label"] = std::string(label);
            records_.push_back({std::move(fields), first});
        }
    }

    // The text form joins ctx_a and ctx_b. ctx_b, which may be empty, is taken to be the text after the last
    // end of a sentence. For the published items this gives the right first letter of ctx_b, and only that
    // letter is used.
    static void split_context(std::string_view context, Json& fields) {
        const size_t last = context.find_last_not_of(' ');
        size_t from = std::string_view::npos;
        if (last != std::string_view::npos &&
            std::string_view(".?!").find(context[last]) == std::string_view::npos) {
            for (const char* end : {". ", "? ", "! "}) {
                const size_t at = context.rfind(end);
                if (at != std::string_view::npos && (from == std::string_view::npos || at > from)) from = at;
            }
        }
        const bool whole = from == std::string_view::npos;
        fields["ctx_a"] = std::string(whole ? context : context.substr(0, from + 1));
        fields["ctx_b"] = std::string(whole ? "" : context.substr(from + 2));
    }

    void unfold() {
        std::vector<Record> unfolded;
        for (const Record& record : records_) {
            line_ = record.line;
            size_t count = 0;
            for (const std::string& name : options_.unfold) {
                const auto list = record.fields.find(name);
                if (list == record.fields.end() || !list->is_array())
                    fail_here(fmt::format("'{}' is no list", name));
                if (name != options_.unfold.front() && list->size() != count)
                    fail_here(fmt::format("'{}' has {} entries and '{}' {}", name, list->size(),
                                          options_.unfold.front(), count));
                count = list->size();
            }
            for (size_t i = 0; i < count; ++i) {
                Record one = record;
                for (const std::string& name : options_.unfold) one.fields[name] = record.fields.at(name)[i];
                unfolded.push_back(std::move(one));
            }
        }
        records_ = std::move(unfolded);
    }

    std::string_view text_;
    const RecordOptions& options_;
    const std::string& label_;
    size_t at_ = 0, line_ = 0;
    std::vector<Record> records_;
};

}  // namespace

RecordForm parse_record_form(const std::string& word, const std::string& where) {
    std::vector<std::string> known;
    for (const auto& [name, form] : kForms) {
        if (word == name) return form;
        known.emplace_back(name);
    }
    fail(ErrorCode::usage, "task", "{}: unknown form '{}'; {}", where, word, suggestion(word, known));
}

std::vector<Record> parse_records(std::string_view text, const RecordOptions& options,
                                  const std::string& label) {
    return Parser(text, options, label).parse();
}

}  // namespace refold
