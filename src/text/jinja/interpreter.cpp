#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "text/jinja/budget.h"
#include "text/jinja/numbers.h"

namespace refold::jinja {
namespace {

// The variables of a template, macro or loop's repetition. Lookups go outward, where the body stands in the
// template - not to whoever calls a macro.
class Scope {
public:
    explicit Scope(Scope* outer) : outer_(outer) {}

    const Value* find(std::string_view name) const {
        for (const Scope* scope = this; scope != nullptr; scope = scope->outer_)
            if (const Value* found = scope->find_here(name)) return found;
        return nullptr;
    }
    const Value* find_here(std::string_view name) const {
        const auto found = std::ranges::find(variables_, name, &std::pair<std::string_view, Value>::first);
        return found == variables_.end() ? nullptr : &found->second;
    }
    // `name` belongs to the template.
    void set(std::string_view name, Value value) {
        const auto found = std::ranges::find(variables_, name, &std::pair<std::string_view, Value>::first);
        if (found != variables_.end()) {
            found->second = std::move(value);
        } else {
            variables_.emplace_back(name, std::move(value));
        }
    }
    void clear() { variables_.clear(); }
    // A macro refers to its scope, which outlives the body then.
    void keep() {
        for (Scope* scope = this; scope != nullptr && !scope->kept_; scope = scope->outer_)
            scope->kept_ = true;
    }
    bool kept() const { return kept_; }

private:
    Scope* outer_;
    bool kept_ = false;
    std::vector<std::pair<std::string_view, Value>> variables_;
};

enum class Flow { normal, stops_loop, next_repetition };

class Interpreter;

class MacroValue final : public Object {
public:
    MacroValue(Interpreter& interpreter, const Macro& macro, Scope& scope)
        : interpreter_(interpreter), macro_(macro), scope_(scope) {}
    std::string type_name() const override { return "Macro"; }
    bool callable() const override { return true; }
    std::string repr() override { return fmt::format("<Macro '{}'>", macro_.name); }
    std::optional<Value> attribute(const std::string& name) override;
    Value call(const Arguments& arguments) override;

private:
    Interpreter& interpreter_;
    const Macro& macro_;
    Scope& scope_;
};

class Loop final : public Object {
public:
    Loop(Interpreter& interpreter, const For& loop, Scope& outer, const Value& items, int64_t depth);
    std::string type_name() const override { return "LoopContext"; }
    bool callable() const override { return true; }
    std::optional<size_t> length() override { return static_cast<size_t>(count()); }
    std::string repr() override { return fmt::format("<LoopContext {}/{}>", index_ + 1, count()); }
    std::optional<Value> attribute(const std::string& name) override;
    // Renders the body for other items, one level deeper.
    Value call(const Arguments& arguments) override;
    // The next item, which becomes the current one.
    bool advance();
    const Value& current() const { return *current_; }

private:
    std::optional<Value> read();
    const std::optional<Value>& peek();
    int64_t count();
    Value cycle(const Arguments& arguments) const;
    Value changed(const Arguments& arguments);

    Interpreter& interpreter_;
    const For& loop_;
    Scope& outer_;
    Iteration iteration_;
    std::optional<size_t> length_;  // when known without reading all items
    std::deque<Value> ahead_;       // read before their repetition
    std::optional<Value> previous_, current_, next_, last_changed_;
    int64_t index_ = -1, depth_;
};

class Interpreter {
public:
    Interpreter(const Template& parsed, Environment& environment, const Variables& variables)
        : environment_(environment), template_(parsed), globals_(nullptr), root_(&globals_) {
        for (const auto& [name, definition] : environment.is_task ? task_functions() : chat_functions())
            globals_.set(name, make_function(environment, name, definition));
        for (const auto& [name, value] : variables) globals_.set(name, value);
        begin(root_, parsed.body);
    }
    // Values may refer to each other in circles through scopes and namespaces.
    ~Interpreter() {
        root_.clear();
        globals_.clear();
        for (const auto& scope : kept_) scope->clear();
        for (const auto& space : environment_.namespaces) space->clear();
        environment_.namespaces.clear();
    }
    Interpreter(const Interpreter&) = delete;
    Interpreter& operator=(const Interpreter&) = delete;

    std::string render() {
        std::string out;
        run(template_.body, root_, out);
        return out;
    }
    std::optional<Value> only_value() {
        if (template_.body.statements.size() != 1) return std::nullopt;
        const auto* output = std::get_if<Output>(&template_.body.statements[0]->what);
        if (output == nullptr) return std::nullopt;
        return evaluate(*output->value, root_);
    }

    Environment& environment() { return environment_; }

    Value call(const Macro& macro, Scope& outer, const Arguments& arguments);
    std::string repeat(const For& loop, Scope& outer, const Value& items, int64_t depth);
    bool passes(const For& loop, Scope& outer, const Value& item) {
        Scope scope(&outer);
        assign(loop.target, item, scope);
        return truth(evaluate(*loop.condition, scope));
    }

private:
    // --- statements

    void begin(Scope& scope, const Body& body) const {
        for (const std::string& name : body.undefined_first)
            scope.set(name, environment_.undefined(fmt::format("'{}' is undefined", name)));
    }
    static void write(std::string& out, std::string_view text) {
        if (out.size() + text.size() > kMostText) check_text(out.size() + text.size());
        count_steps(text.size() / 256);
        out += text;
    }

    // A scope that ends with its body, unless a macro keeps it.
    template <typename Action>
    auto within(Scope& outer, Action action) {
        auto scope = std::make_unique<Scope>(&outer);
        const auto done = [&] {
            if (scope->kept()) kept_.push_back(std::move(scope));
        };
        try {
            auto out = action(*scope);
            done();
            return out;
        } catch (...) {
            done();
            throw;
        }
    }
    std::string text_of(const Body& body, Scope& outer) {
        return within(outer, [&](Scope& scope) {
            std::string out;
            begin(scope, body);
            run(body, scope, out);
            return out;
        });
    }

    Flow run(const Body& body, Scope& scope, std::string& out) {
        check_stack();
        for (const auto& statement : body.statements) {
            count_steps(1);
            const Flow flow =
                std::visit([&](const auto& what) { return run(what, scope, out); }, statement->what);
            if (flow != Flow::normal) return flow;
        }
        return Flow::normal;
    }
    Flow run(const Data& data, Scope&, std::string& out) {
        write(out, data.text);
        return Flow::normal;
    }
    Flow run(const Output& output, Scope& scope, std::string& out) {
        const Value value = evaluate(*output.value, scope);
        if (value.is_text()) {
            write(out, value.str());
        } else {
            write(out, to_str(value));
        }
        return Flow::normal;
    }
    Flow run(const Set& set, Scope& scope, std::string&) {
        assign(set.target, evaluate(*set.value, scope), scope);
        return Flow::normal;
    }
    Flow run(const SetBlock& set, Scope& scope, std::string&) {
        Value text = Value::text(text_of(set.body, scope));
        if (set.filter) text = filtered(*set.filter, std::move(text), scope);
        assign(set.target, text, scope);
        return Flow::normal;
    }
    Flow run(const If& condition, Scope& scope, std::string& out) {
        for (const If::Branch& branch : condition.branches)
            if (truth(evaluate(*branch.condition, scope))) return run(branch.body, scope, out);
        return run(condition.otherwise, scope, out);
    }
    Flow run(const For& loop, Scope& scope, std::string& out) {
        write(out, repeat(loop, scope, evaluate(*loop.items, scope), 0));
        return Flow::normal;
    }
    Flow run(const Macro& macro, Scope& scope, std::string&) {
        scope.set(macro.name, make_macro(macro, scope));
        return Flow::normal;
    }
    Flow run(const CallBlock& block, Scope& scope, std::string& out) {
        const Value caller = make_macro(block.caller, scope);
        const Value function = evaluate(*block.call->parts[0], scope);
        Arguments arguments = collect(*block.call->arguments, scope);
        arguments.named.emplace_back("caller", caller);
        write(out, to_str(call_value(function, arguments)));
        return Flow::normal;
    }
    Flow run(const FilterBlock& block, Scope& scope, std::string& out) {
        Value text = Value::text(text_of(block.body, scope));
        const Value made = filtered(*block.filter, std::move(text), scope);
        check_defined(made);
        if (!made.is_text())
            throw TemplateError(
                fmt::format("the filter of a block made a '{}', expected a text", made.type_name()));
        write(out, made.str());
        return Flow::normal;
    }
    Flow run(const With& with, Scope& outer, std::string& out) {
        return within(outer, [&](Scope& scope) {
            begin(scope, with.body);
            for (const auto& [target, value] : with.values) assign(target, evaluate(*value, outer), scope);
            return run(with.body, scope, out);
        });
    }
    Flow run(const Generation& generation, Scope& scope, std::string& out) {
        write(out, text_of(generation.body, scope));
        return Flow::normal;
    }
    Flow run(const Block& block, Scope& scope, std::string& out) {
        write(out, text_of(block.body, block.scoped ? scope : root_));
        return Flow::normal;
    }
    Flow run(const Break&, Scope&, std::string&) { return Flow::stops_loop; }
    Flow run(const Continue&, Scope&, std::string&) { return Flow::next_repetition; }

    Value make_macro(const Macro& macro, Scope& scope) {
        scope.keep();
        check_memory(sizeof(MacroValue) + sizeof(Scope));
        return std::make_shared<MacroValue>(*this, macro, scope);
    }

    void assign(const Target& target, const Value& value, Scope& scope) {
        if (target.unpacks) {
            const Items items = to_items(value);
            if (items.size() != target.parts.size())
                throw TemplateError(
                    fmt::format("got {} values to unpack, expected {}", items.size(), target.parts.size()));
            for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
        } else if (target.member.empty()) {
            scope.set(target.name, value);
        } else {
            const Value* found = scope.find(target.name);
            const auto space = found != nullptr ? found->object_as<Namespace>() : nullptr;
            if (!space) throw TemplateError("only members of a namespace can be set");
            space->set(target.member, value);
        }
    }

    // --- expressions

    Value evaluate(const Expression& expression, Scope& scope) {
        check_stack();
        count_steps(1);
        const auto part = [&](size_t i) { return evaluate(*expression.parts[i], scope); };
        switch (expression.kind) {
            case ExpressionKind::constant: return expression.constant;
            case ExpressionKind::name: {
                const Value* found = scope.find(expression.text);
                if (found != nullptr) return *found;
                return environment_.undefined(fmt::format("'{}' is undefined", expression.text));
            }
            case ExpressionKind::list: return Value::list(parts(expression, scope));
            case ExpressionKind::tuple: return Value::tuple(parts(expression, scope));
            case ExpressionKind::dict: {
                std::vector<Entry> entries;
                for (size_t i = 0; i < expression.parts.size(); i += 2) {
                    Value key = part(i);
                    entries.push_back({std::move(key), part(i + 1)});
                }
                return make_dict(std::move(entries));
            }
            case ExpressionKind::unary: {
                const Value value = part(0);
                check_defined(value);
                if (!value.is_integral() && !value.is_float() && !value.is_big())
                    throw TemplateError(fmt::format("bad operand type for unary {}: '{}'", expression.text,
                                                    value.type_name()));
                if (expression.text == "-") return negate(value);
                return value.is_bool() ? Value(value.as_int()) : value;
            }
            case ExpressionKind::binary: {
                const Value left = part(0);
                return operate(expression.text, left, part(1));
            }
            case ExpressionKind::logical: {
                Value left = part(0);
                return truth(left) == (expression.text == "or") ? left : part(1);
            }
            case ExpressionKind::negation: return !truth(part(0));
            case ExpressionKind::comparison: return compared(expression, scope);
            case ExpressionKind::concatenation: {
                std::string out;
                for (size_t i = 0; i < expression.parts.size(); ++i) {
                    const std::string text = to_str(part(i));
                    check_text(out.size() + text.size());
                    out += text;
                }
                return Value::text(std::move(out));
            }
            case ExpressionKind::conditional:
                if (truth(part(0))) return part(1);
                if (expression.parts[2]) return part(2);
                // Not a strict one in tasks either.
                return Value::undefined("the inline if-expression is false and has no else", false);
            case ExpressionKind::attribute: return get_attribute(environment_, part(0), expression.text);
            case ExpressionKind::item: {
                const Value value = part(0);
                const Expression& key = *expression.parts[1];
                if (key.kind != ExpressionKind::slice)
                    return get_item(environment_, value, evaluate(key, scope));
                const auto bound = [&](size_t i) {
                    return key.parts[i] ? evaluate(*key.parts[i], scope) : Value();
                };
                const Value from = bound(0), to = bound(1);
                return get_slice(value, from, to, bound(2));
            }
            case ExpressionKind::slice: throw TemplateError("a slice stands among several indices");
            case ExpressionKind::call: {
                const Value function = part(0);
                return call_value(function, collect(*expression.arguments, scope));
            }
            case ExpressionKind::filter:
                return call_filter(environment_, expression.text, part(0),
                                   collect(*expression.arguments, scope));
            case ExpressionKind::test:
                return call_test(environment_, expression.text, part(0),
                                 collect(*expression.arguments, scope));
        }
        return {};
    }

    Items parts(const Expression& expression, Scope& scope) {
        Items out;
        for (const auto& part : expression.parts) out.push_back(evaluate(*part, scope));
        return out;
    }

    Value compared(const Expression& expression, Scope& scope) {
        Value left = evaluate(*expression.parts[0], scope);
        for (size_t i = 0; i < expression.operators.size(); ++i) {
            Value right = evaluate(*expression.parts[i + 1], scope);
            if (!holds(expression.operators[i], left, right)) return false;
            left = std::move(right);
        }
        return true;
    }
    static bool holds(const std::string& operation, const Value& left, const Value& right) {
        if (operation == "==") return equal(left, right);
        if (operation == "!=") return !equal(left, right);
        if (operation == "in") return is_in(left, right);
        if (operation == "not in") return !is_in(left, right);
        const auto order = compare(left, right);
        if (!order) return false;
        if (operation == "<") return *order < 0;
        if (operation == "<=") return *order <= 0;
        return operation == ">" ? *order > 0 : *order >= 0;
    }

    Arguments collect(const CallArguments& arguments, Scope& scope) {
        Arguments out;
        for (const auto& argument : arguments.positional)
            out.positional.push_back(evaluate(*argument, scope));
        for (const auto& [name, argument] : arguments.named)
            out.named.emplace_back(name, evaluate(*argument, scope));
        if (arguments.more_positional)
            for (Value& item : to_items(evaluate(*arguments.more_positional, scope)))
                out.positional.push_back(std::move(item));
        if (!arguments.more_named) return out;
        const Value more = evaluate(*arguments.more_named, scope);
        check_defined(more);
        if (!more.is_dict()) throw TemplateError("'**' needs a mapping");
        for (const auto& [key, value] : more.as_dict().entries()) {
            if (!key.is_text()) throw TemplateError("keywords must be texts");
            count_steps(out.named.size() / 16);
            const bool twice =
                std::ranges::any_of(out.named, [&](const auto& named) { return named.first == key.str(); });
            if (twice)
                throw TemplateError(fmt::format("multiple values for keyword argument '{}'", key.str()));
            out.named.emplace_back(key.str(), value);
        }
        return out;
    }

    // A chain of filters whose innermost has no value of its own.
    Value filtered(const Expression& filter, Value text, Scope& scope) {
        const Value value =
            filter.parts[0] ? filtered(*filter.parts[0], std::move(text), scope) : std::move(text);
        return call_filter(environment_, filter.text, value, collect(*filter.arguments, scope));
    }

    Environment& environment_;
    const Template& template_;
    Scope globals_, root_;
    std::vector<std::unique_ptr<Scope>> kept_;
};

Value Interpreter::call(const Macro& macro, Scope& outer, const Arguments& given) {
    check_stack();
    count_repetition();
    return within(outer, [&](Scope& scope) {
        begin(scope, macro.body);
        const size_t count = macro.parameters.size();
        std::vector<bool> missing(count, false);
        std::vector<std::pair<std::string, Value>> named = given.named;
        const auto take = [&](std::string_view name) -> std::optional<Value> {
            const auto found = std::ranges::find(named, name, &std::pair<std::string, Value>::first);
            if (found == named.end()) return std::nullopt;
            Value value = std::move(found->second);
            named.erase(found);
            return value;
        };
        bool takes_caller = false;
        for (size_t i = 0; i < count; ++i) {
            const std::string& name = macro.parameters[i];
            takes_caller = takes_caller || name == "caller";
            auto value = i < given.positional.size() ? std::optional(given.positional[i]) : take(name);
            missing[i] = !value;
            scope.set(name,
                      value ? *value
                            : environment_.undefined(fmt::format("parameter '{}' was not provided", name)));
        }
        if (macro.reads_caller && !takes_caller) {
            auto caller = take("caller");
            scope.set("caller",
                      caller && !caller->is_none() ? *caller : environment_.undefined("No caller defined"));
        }
        const auto is_parameter = [&](std::string_view name) {
            return std::ranges::find(macro.parameters, name) != macro.parameters.end();
        };
        if (macro.reads_kwargs && !is_parameter("kwargs")) {
            std::vector<Entry> entries;
            for (auto& [name, value] : named) entries.push_back({Value::text(name), std::move(value)});
            scope.set("kwargs", make_dict(std::move(entries)));
        } else if (!named.empty()) {
            throw TemplateError(
                fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, named.front().first));
        }
        if (macro.reads_varargs && !is_parameter("varargs")) {
            Items more;
            for (size_t i = count; i < given.positional.size(); ++i) more.push_back(given.positional[i]);
            scope.set("varargs", Value::tuple(std::move(more)));
        } else if (given.positional.size() > count) {
            throw TemplateError(
                fmt::format("macro '{}' takes not more than {} arguments", macro.name, count));
        }
        const size_t without_default = count - macro.defaults.size();
        for (size_t i = without_default; i < count; ++i)
            if (missing[i])
                scope.set(macro.parameters[i], evaluate(*macro.defaults[i - without_default], scope));
        std::string out;
        run(macro.body, scope, out);
        return Value::text(std::move(out));
    });
}

std::string Interpreter::repeat(const For& loop, Scope& outer, const Value& items, int64_t depth) {
    check_stack();
    std::string out;
    const auto state = std::make_shared<Loop>(*this, loop, outer, items, depth);
    bool any = false;
    while (state->advance()) {
        any = true;
        count_repetition();
        const Flow flow = within(outer, [&](Scope& scope) {
            begin(scope, loop.body);
            scope.set("loop", state);
            assign(loop.target, state->current(), scope);
            return run(loop.body, scope, out);
        });
        if (flow == Flow::stops_loop) break;
    }
    if (any || loop.otherwise.statements.empty()) return out;
    const Flow flow = within(outer, [&](Scope& scope) {
        begin(scope, loop.otherwise);
        return run(loop.otherwise, scope, out);
    });
    if (flow != Flow::normal)
        throw TemplateError("'break' and 'continue' in the 'else' of a loop are not supported");
    return out;
}

Value MacroValue::call(const Arguments& arguments) { return interpreter_.call(macro_, scope_, arguments); }

std::optional<Value> MacroValue::attribute(const std::string& name) {
    if (name == "name") return Value::text(macro_.name);
    if (name != "arguments") return std::nullopt;
    Items out;
    for (const std::string& parameter : macro_.parameters) out.push_back(Value::text(parameter));
    return Value::list(std::move(out));
}

Loop::Loop(Interpreter& interpreter, const For& loop, Scope& outer, const Value& items, int64_t depth)
    : interpreter_(interpreter), loop_(loop), outer_(outer), iteration_(items), depth_(depth) {
    if (!loop.condition) length_ = length_of(items);
    // It may outlive the body that it stands in, in a namespace.
    if (loop.recursive || loop.condition) outer.keep();
}

// Items that pass the loop's condition, which is evaluated as they are needed.
std::optional<Value> Loop::read() {
    while (auto item = iteration_.next()) {
        count_steps(1);
        if (!loop_.condition || interpreter_.passes(loop_, outer_, *item)) return item;
    }
    return std::nullopt;
}

const std::optional<Value>& Loop::peek() {
    if (!next_) {
        if (!ahead_.empty()) {
            next_ = std::move(ahead_.front());
            ahead_.pop_front();
        } else {
            next_ = read();
        }
    }
    return next_;
}

bool Loop::advance() {
    peek();
    if (!next_) return false;
    previous_ = std::exchange(current_, std::exchange(next_, std::nullopt));
    ++index_;
    return true;
}

int64_t Loop::count() {
    if (!length_) {
        while (auto item = read()) ahead_.push_back(std::move(*item));
        length_ = static_cast<size_t>(index_) + 1 + ahead_.size() + (next_ ? 1 : 0);
    }
    return static_cast<int64_t>(*length_);
}

Value Loop::cycle(const Arguments& arguments) const {
    const auto& items = arguments.positional;
    if (items.empty() || !arguments.named.empty())
        throw TemplateError("loop.cycle: expected items to cycle through");
    return items[static_cast<size_t>(index_) % items.size()];
}

Value Loop::changed(const Arguments& arguments) {
    if (!arguments.named.empty()) throw TemplateError("loop.changed: unexpected keyword argument");
    Value now = Value::tuple(arguments.positional);
    if (last_changed_ && equal(*last_changed_, now)) return false;
    last_changed_ = std::move(now);
    return true;
}

std::optional<Value> Loop::attribute(const std::string& name) {
    static const Definition kCycle{
        .implementation = [](Call& call) { return call.self.object_as<Loop>()->cycle(call.given); },
        .any = true};
    static const Definition kChanged{
        .implementation = [](Call& call) { return call.self.object_as<Loop>()->changed(call.given); },
        .any = true};
    Environment& environment = interpreter_.environment();
    if (name == "index") return index_ + 1;
    if (name == "index0") return index_;
    if (name == "first") return index_ == 0;
    if (name == "last") return !peek();
    if (name == "length") return count();
    if (name == "revindex") return count() - index_;
    if (name == "revindex0") return count() - index_ - 1;
    if (name == "depth") return depth_ + 1;
    if (name == "depth0") return depth_;
    if (name == "previtem")
        return index_ > 0 ? *previous_ : environment.undefined("there is no previous item");
    if (name == "nextitem") return peek() ? *next_ : environment.undefined("there is no next item");
    if (name == "cycle") return make_function(environment, "cycle", kCycle, shared_from_this());
    if (name == "changed") return make_function(environment, "changed", kChanged, shared_from_this());
    return std::nullopt;
}

Value Loop::call(const Arguments& arguments) {
    if (!loop_.recursive)
        throw TemplateError("the loop must have the 'recursive' marker to be called recursively");
    const bool one = arguments.positional.size() + arguments.named.size() == 1 &&
                     (arguments.named.empty() || arguments.named[0].first == "iterable");
    if (!one) throw TemplateError("loop(): expected one argument");
    const Value& items = arguments.named.empty() ? arguments.positional[0] : arguments.named[0].second;
    return Value::text(interpreter_.repeat(loop_, outer_, items, depth_ + 1));
}

}  // namespace

std::string render(const Template& parsed, Environment& environment, const Variables& variables) {
    return Interpreter(parsed, environment, variables).render();
}

std::optional<Value> evaluate(const Template& parsed, Environment& environment, const Variables& variables) {
    return Interpreter(parsed, environment, variables).only_value();
}

}  // namespace refold::jinja
