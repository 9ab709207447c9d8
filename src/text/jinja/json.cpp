// json.dumps() of values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/numbers.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

class Writer {
public:
    explicit Writer(const JsonOptions& options) : options_(options) {}
    std::string take() { return std::move(out_); }

    void write(const Value& value, int level) {
        count_steps(1);
        if (value.is_none()) {
            add("null");
        } else if (value.is_bool()) {
            add(value.as_bool() ? "true" : "false");
        } else if (value.is_int() || value.is_big()) {
            add(to_str(value));
        } else if (value.is_float()) {
            add(number(value.as_float()));
        } else if (value.is_text()) {
            text(value.str());
        } else if (value.has_items()) {
            list(value.items(), level);
        } else if (value.is_dict()) {
            dict(value.as_dict(), level);
        } else {
            throw TemplateError(
                fmt::format("tojson: an object of type {} is not JSON serializable", value.type_name()));
        }
    }

private:
    void add(std::string_view part) {
        if (out_.size() + part.size() > kMostText) check_text(out_.size() + part.size());
        out_ += part;
    }
    void line(int level) {
        if (!options_.indent) return;
        add("\n");
        for (int i = 0; i < level; ++i) add(*options_.indent);
    }
    static std::string number(double value) {
        if (std::isnan(value)) return "NaN";
        if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
        return float_repr(value);
    }
    void list(const Items& items, int level) {
        if (items.empty()) return add("[]");
        add("[");
        for (size_t i = 0; i < items.size(); ++i) {
            if (i > 0) add(options_.item_separator);
            line(level + 1);
            write(items[i], level + 1);
        }
        line(level);
        add("]");
    }
    void dict(const Dict& dict, int level) {
        if (dict.size() == 0) return add("{}");
        std::vector<const Entry*> entries;
        for (const Entry& entry : dict.entries()) entries.push_back(&entry);
        if (options_.sort_keys) {
            for (size_t i = 1; i < entries.size(); ++i) compare(entries[0]->key, entries[i]->key);  // throws
            std::ranges::stable_sort(entries, [](const Entry* a, const Entry* b) {
                const auto order = compare(a->key, b->key);
                return order.has_value() && *order < 0;
            });
        }
        add("{");
        bool first = true;
        for (const Entry* entry : entries) {
            if (!std::exchange(first, false)) add(options_.item_separator);
            line(level + 1);
            text(key(entry->key));
            add(options_.key_separator);
            write(entry->value, level + 1);
        }
        line(level);
        add("}");
    }
    static std::string key(const Value& key) {
        if (key.is_text()) return key.str();
        if (key.is_none()) return "null";
        if (key.is_bool()) return key.as_bool() ? "true" : "false";
        if (key.is_float()) return number(key.as_float());
        if (key.is_int() || key.is_big()) return to_str(key);
        throw TemplateError(
            fmt::format("tojson: keys must be texts, numbers, bools or none, not {}", key.type_name()));
    }
    void escape(uint32_t code) { add(fmt::format("\\u{:04x}", code)); }
    void text(const std::string& text) {
        add("\"");
        for (size_t at = 0; at < text.size();) {
            const size_t begin = at;
            const char32_t point = next_point(text, at);
            switch (point) {
                case U'"': add("\\\""); break;
                case U'\\': add("\\\\"); break;
                case U'\n': add("\\n"); break;
                case U'\r': add("\\r"); break;
                case U'\t': add("\\t"); break;
                case U'\f': add("\\f"); break;
                case U'\b': add("\\b"); break;
                default:
                    if (point < 0x20) {
                        escape(point);
                    } else if (options_.ascii && point >= 0x10000) {
                        escape(0xd800 + ((point - 0x10000) >> 10));
                        escape(0xdc00 + ((point - 0x10000) & 0x3ff));
                    } else if (options_.ascii && point >= 0x7f) {
                        escape(point);
                    } else {
                        add(std::string_view(text).substr(begin, at - begin));
                    }
            }
        }
        add("\"");
    }

    const JsonOptions& options_;
    std::string out_;
};

}  // namespace

std::string to_json(const Value& value, const JsonOptions& options) {
    Writer writer(options);
    writer.write(value, 0);
    return writer.take();
}

}  // namespace refold::jinja
