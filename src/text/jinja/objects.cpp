#include <fmt/format.h>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"

namespace refold::jinja {
namespace {

class Function final : public Object {
public:
    Function(Environment& environment, std::string_view name, const Definition& definition, Value self)
        : environment_(environment), name_(name), definition_(definition), self_(std::move(self)) {}
    std::string type_name() const override { return "builtin_function_or_method"; }
    bool callable() const override { return true; }
    Value call(const Arguments& arguments) override {
        return apply(definition_,
                     {.environment = environment_, .name = name_, .self = self_, .given = arguments});
    }

private:
    Environment& environment_;
    const std::string_view name_;
    const Definition& definition_;
    const Value self_;
};

class Iterator final : public Object {
public:
    explicit Iterator(Items items) : items_(std::move(items)) {}
    std::string type_name() const override { return "generator"; }
    std::shared_ptr<Object> iterate() override { return shared_from_this(); }
    std::optional<Value> next() override {
        if (at_ >= items_.size()) return std::nullopt;
        return std::move(items_[at_++]);
    }

private:
    Items items_;
    size_t at_ = 0;
};

// An iteration over what can be read again.
class View final : public Object {
public:
    View(std::shared_ptr<const Dict> dict, ViewKind kind) : dict_(std::move(dict)), kind_(kind) {}
    std::string type_name() const override {
        return kind_ == ViewKind::keys     ? "dict_keys"
               : kind_ == ViewKind::values ? "dict_values"
                                           : "dict_items";
    }
    std::string repr() override {
        return fmt::format("{}({})", type_name(), jinja::repr(Value::list(items())));
    }
    std::optional<size_t> length() override { return dict_->size(); }
    bool truth() override { return dict_->size() > 0; }
    std::shared_ptr<Object> iterate() override { return make_iterator(items()).object(); }

private:
    Items items() const {
        Items out;
        for (const auto& [key, value] : dict_->entries()) {
            if (kind_ == ViewKind::items) {
                out.push_back(Value::tuple({key, value}));
            } else {
                out.push_back(kind_ == ViewKind::keys ? key : value);
            }
        }
        return out;
    }

    const std::shared_ptr<const Dict> dict_;
    const ViewKind kind_;
};

class Range final : public Object {
public:
    Range(int64_t start, int64_t stop, int64_t step) : start_(start), stop_(stop), step_(step) {
        constexpr uint64_t kMost = 100'000;  // as in Jinja's sandbox
        if (step == 0) throw TemplateError("range: the step is zero");
        // Unsigned, as the distance may be beyond the signed range.
        const int64_t low = step > 0 ? start : stop, high = step > 0 ? stop : start;
        const uint64_t distance = high > low ? static_cast<uint64_t>(high) - static_cast<uint64_t>(low) : 0,
                       stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
        count_ = distance / stride + (distance % stride != 0 ? 1 : 0);
        if (count_ > kMost) throw TemplateError("range: more than 100,000 numbers");
    }
    std::string type_name() const override { return "range"; }
    std::string repr() override {
        return step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                          : fmt::format("range({}, {}, {})", start_, stop_, step_);
    }
    std::optional<size_t> length() override { return count_; }
    bool truth() override { return count_ > 0; }
    std::shared_ptr<Object> iterate() override { return make_iterator(items()).object(); }
    bool equals(Object& other) override {
        auto* range = dynamic_cast<Range*>(&other);
        return range != nullptr && jinja::equal(Value::list(items()), Value::list(range->items()));
    }
    std::optional<Value> attribute(const std::string& name) override {
        if (name == "start") return start_;
        if (name == "stop") return stop_;
        if (name == "step") return step_;
        return std::nullopt;
    }

private:
    Items items() const {
        Items out;
        for (uint64_t i = 0; i < count_; ++i) out.emplace_back(start_ + static_cast<int64_t>(i) * step_);
        return out;
    }

    const int64_t start_, stop_, step_;
    uint64_t count_ = 0;
};

class Cycler final : public Object {
public:
    Cycler(Environment& environment, Items items) : environment_(environment), items_(std::move(items)) {
        if (items_.empty()) throw TemplateError("cycler: at least one item is expected");
    }
    std::string type_name() const override { return "Cycler"; }
    std::optional<Value> next() override {
        Value out = items_[at_];
        at_ = (at_ + 1) % items_.size();
        return out;
    }
    std::optional<Value> attribute(const std::string& name) override {
        static const Definition kNext{
            .implementation = [](Call& call) { return *call.self.object()->next(); }};
        static const Definition kReset{.implementation = [](Call& call) {
            call.self.object_as<Cycler>()->at_ = 0;
            return Value();
        }};
        if (name == "current") return items_[at_];
        if (name == "pos") return static_cast<int64_t>(at_);
        if (name == "next") return make_function(environment_, "next", kNext, shared_from_this());
        if (name == "reset") return make_function(environment_, "reset", kReset, shared_from_this());
        return std::nullopt;
    }

private:
    Environment& environment_;
    const Items items_;
    size_t at_ = 0;
};

class Joiner final : public Object {
public:
    explicit Joiner(Value separator) : separator_(std::move(separator)) {}
    std::string type_name() const override { return "Joiner"; }
    bool callable() const override { return true; }
    Value call(const Arguments& arguments) override {
        if (!arguments.positional.empty() || !arguments.named.empty())
            throw TemplateError("a joiner takes no arguments");
        if (std::exchange(used_, true)) return separator_;
        return Value::text("");
    }

private:
    const Value separator_;
    bool used_ = false;
};

}  // namespace

std::optional<Value> Namespace::attribute(const std::string& name) {
    for (const auto& [known, value] : members_)
        if (known == name) return value;
    return std::nullopt;
}

std::string Namespace::repr() {
    std::vector<Entry> entries;
    for (const auto& [name, value] : members_) entries.push_back({Value::text(name), value});
    return fmt::format("<Namespace {}>", jinja::repr(make_dict(std::move(entries))));
}

void Namespace::set(const std::string& name, Value value) {
    count_steps(members_.size() / 16);
    for (auto& [known, member] : members_) {
        if (known != name) continue;
        member = std::move(value);
        return;
    }
    check_memory(name.size() + sizeof(Value));
    members_.emplace_back(name, std::move(value));
}

Value make_function(Environment& environment, std::string_view name, const Definition& definition,
                    Value self) {
    return std::make_shared<Function>(environment, name, definition, std::move(self));
}

Value make_iterator(Items items) {
    check_memory(items.size() * sizeof(Value));
    return std::make_shared<Iterator>(std::move(items));
}

Value make_view(std::shared_ptr<const Dict> dict, ViewKind kind) {
    return std::make_shared<View>(std::move(dict), kind);
}

Value make_range(int64_t start, int64_t stop, int64_t step) {
    return std::make_shared<Range>(start, stop, step);
}

Value make_cycler(Environment& environment, Items items) {
    return std::make_shared<Cycler>(environment, std::move(items));
}

Value make_joiner(Value separator) { return std::make_shared<Joiner>(std::move(separator)); }

}  // namespace refold::jinja
