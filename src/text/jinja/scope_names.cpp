// Which names of a scope are undefined at its beginning. Jinja's compiler decides it for a scope as a whole:
// a name that is set before anything in the scope reads it begins as undefined, and scopes within, such as
// macros and loops, see it so until it is set.
#include <functional>
#include <set>

#include "text/jinja/budget.h"
#include "text/jinja/parser.h"

namespace refold::jinja {
namespace {

class Scope {
public:
    explicit Scope(const Scope* outer) : outer_(outer) {}

    void declare(const Target& target) {
        for_names(target, [&](const std::string& name) { declare(name); });
    }
    void declare(const std::string& name) { known_.insert(name); }
    void read(const Expression* expression) {
        if (expression == nullptr) return;
        if (expression->kind == ExpressionKind::name) load(expression->text);
        for (const auto& part : expression->parts) read(part.get());
        if (!expression->arguments) return;
        for (const auto& argument : expression->arguments->positional) read(argument.get());
        for (const auto& [name, argument] : expression->arguments->named) read(argument.get());
        read(expression->arguments->more_positional.get());
        read(expression->arguments->more_named.get());
    }
    void read(const Body& body) {
        for (const auto& statement : body.statements) read(*statement);
    }

    // Bodies with scopes of their own; this one is complete.
    void enter(Body& body) const {
        for (const auto& statement : body.statements) enter(*statement);
    }
    std::vector<std::string> undefined_first() const { return {undefined_.begin(), undefined_.end()}; }

private:
    static void for_names(const Target& target, const std::function<void(const std::string&)>& action) {
        if (!target.name.empty() && target.member.empty()) action(target.name);
        for (const Target& part : target.parts) for_names(part, action);
    }
    bool knows(const std::string& name) const {
        return known_.contains(name) || (outer_ != nullptr && outer_->knows(name));
    }
    void load(const std::string& name) {
        if (!knows(name)) known_.insert(name);
    }
    void store(const std::string& name) {
        if (known_.contains(name)) return;
        if (outer_ == nullptr || !outer_->knows(name)) undefined_.insert(name);
        known_.insert(name);
    }
    void store(const Target& target) {
        if (!target.member.empty()) load(target.name);
        for (const Target& part : target.parts)
            if (!part.member.empty()) load(part.name);
        for_names(target, [&](const std::string& name) { store(name); });
    }

    void read(const Statement& statement) {
        if (const auto* output = std::get_if<Output>(&statement.what)) {
            read(output->value.get());
        } else if (const auto* set = std::get_if<Set>(&statement.what)) {
            read(set->value.get());
            store(set->target);
        } else if (const auto* block = std::get_if<SetBlock>(&statement.what)) {
            store(block->target);
        } else if (const auto* condition = std::get_if<If>(&statement.what)) {
            branches(*condition);
        } else if (const auto* loop = std::get_if<For>(&statement.what)) {
            read(loop->items.get());
        } else if (const auto* macro = std::get_if<Macro>(&statement.what)) {
            store(macro->name);
        } else if (const auto* call = std::get_if<CallBlock>(&statement.what)) {
            read(call->call.get());
        } else if (const auto* filter = std::get_if<FilterBlock>(&statement.what)) {
            read(filter->filter.get());
        } else if (const auto* with = std::get_if<With>(&statement.what)) {
            for (const auto& [target, value] : with->values) read(value.get());
        }
    }
    // A name that only branches set begins with its value outside.
    void branches(const If& condition) {
        read(condition.branches[0].condition.get());
        count_steps(3 * known_.size());  // the copies
        Scope taken = *this, others = *this, otherwise = *this;
        taken.read(condition.branches[0].body);
        for (size_t i = 1; i < condition.branches.size(); ++i) others.branch(condition.branches[i]);
        otherwise.read(condition.otherwise);
        merge({&taken, &others, &otherwise});
    }
    void branch(const If::Branch& branch) {
        read(branch.condition.get());
        count_steps(known_.size());
        Scope taken = *this;
        taken.read(branch.body);
        merge({&taken});
    }
    void merge(const std::vector<const Scope*>& scopes) {
        for (const Scope* scope : scopes) known_.insert(scope->known_.begin(), scope->known_.end());
    }

    void enter(Statement& statement) const {
        if (auto* block = std::get_if<SetBlock>(&statement.what)) {
            complete(block->body, [](Scope&) {});
        } else if (auto* condition = std::get_if<If>(&statement.what)) {
            for (If::Branch& branch : condition->branches) enter(branch.body);
            enter(condition->otherwise);
        } else if (auto* loop = std::get_if<For>(&statement.what)) {
            complete(loop->body, [&](Scope& scope) {
                scope.declare("loop");
                scope.declare(loop->target);
            });
            complete(loop->otherwise, [](Scope&) {});
        } else if (auto* macro = std::get_if<Macro>(&statement.what)) {
            enter(*macro);
        } else if (auto* call = std::get_if<CallBlock>(&statement.what)) {
            enter(call->caller);
        } else if (auto* filter = std::get_if<FilterBlock>(&statement.what)) {
            complete(filter->body, [&](Scope& scope) { scope.read(filter->filter.get()); });
        } else if (auto* with = std::get_if<With>(&statement.what)) {
            complete(with->body, [&](Scope& scope) {
                for (const auto& [target, value] : with->values) scope.declare(target);
            });
        } else if (auto* generation = std::get_if<Generation>(&statement.what)) {
            complete(generation->body, [](Scope&) {});
        } else if (auto* named = std::get_if<Block>(&statement.what)) {
            const Scope none(nullptr);
            none.complete(named->body, [](Scope&) {});
        }
    }
    void enter(Macro& macro) const {
        complete(macro.body, [&](Scope& scope) {
            for (const std::string& parameter : macro.parameters) scope.declare(parameter);
            for (const auto& value : macro.defaults) scope.read(value.get());
            for (const char* special : {"caller", "varargs", "kwargs"}) scope.declare(special);
        });
    }
    template <typename Begin>
    void complete(Body& body, const Begin& begin) const {
        Scope scope(this);
        begin(scope);
        scope.read(body);
        body.undefined_first = scope.undefined_first();
        scope.enter(body);
    }

    const Scope* outer_;
    std::set<std::string> known_, undefined_;
};

}  // namespace

void find_undefined_names(Template& parsed) {
    Scope root(nullptr);
    root.read(parsed.body);
    parsed.body.undefined_first = root.undefined_first();
    root.enter(parsed.body);
}

}  // namespace refold::jinja
