#include "text/jinja_bounds.h"

#include <jinja/value.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>

namespace refold {
namespace {

// The engine's parser and runtime are recursive: in brackets, blocks, branches and chains of operators.
class Nesting {
public:
    void check(const std::vector<jinja::token>& tokens) {
        for (size_t i = 0; i < tokens.size(); ++i) {
            const auto type = tokens[i].t;
            const bool begins = type == Token::open_statement || type == Token::open_expression;
            length_ = begins ? 0 : length_ + 1;
            if (length_ > kLongest) throw std::runtime_error("an expression is too long");
            if (type == Token::open_paren || type == Token::open_square_bracket ||
                type == Token::open_curly_bracket)
                ++brackets_;
            if (type == Token::close_paren || type == Token::close_square_bracket ||
                type == Token::close_curly_bracket)
                --brackets_;
            if (brackets_ > kDeepest) throw std::runtime_error("the brackets are nested too deeply");
            if (type == Token::open_statement && i + 1 < tokens.size()) statement(tokens, i + 1);
            if (blocks_ > kBlocks)
                throw std::runtime_error("the blocks are nested too deeply, or have too many branches");
        }
    }

private:
    using Token = jinja::token;
    // Brackets; tokens; blocks and their branches. Real templates have less.
    static constexpr int kDeepest = 64, kLongest = 1000, kBlocks = 200;

    void statement(const std::vector<Token>& tokens, size_t at) {
        const std::string& word = tokens[at].value;
        if (word == "elif") {
            ++blocks_;
            if (!open_.empty()) ++open_.back();
        } else if (word.starts_with("end")) {
            if (open_.empty()) return;
            blocks_ -= open_.back();
            open_.pop_back();
        } else if (word == "if" || word == "for" || word == "macro" || word == "call" || word == "filter" ||
                   word == "generation" || (word == "set" && !assigns(tokens, at))) {
            ++blocks_;
            open_.push_back(1);
        }
    }
    static bool assigns(const std::vector<Token>& tokens, size_t at) {
        while (at < tokens.size() && tokens[at].t != Token::close_statement)
            if (tokens[at++].t == Token::equals) return true;
        return false;
    }

    int brackets_ = 0, length_ = 0, blocks_ = 0;
    std::vector<int> open_;  // by open block: itself and its branches
};

// Not the address of a variable: sanitizers keep those elsewhere.
const char* stack_here() { return static_cast<const char*>(__builtin_frame_address(0)); }

// Of the template that this thread renders.
thread_local const char* stack_begin = nullptr;
thread_local uint64_t steps = 0;
thread_local std::unordered_set<jinja::value> namespaces;

void check_bounds() {
    constexpr ptrdiff_t kMostStack = 1 << 20;  // bytes; a thread has several MiB
    constexpr uint64_t kMostSteps = 500'000;
    if (stack_begin - stack_here() > kMostStack)
        throw std::runtime_error("the macros call each other too deeply");
    if (++steps > kMostSteps) throw std::runtime_error("more than 500,000 repetitions");
}

// The first statement of a body that may be repeated.
struct BodyGuard final : jinja::statement {
    jinja::value execute_impl(jinja::context&) const override {
        check_bounds();
        return jinja::mk_val<jinja::value_undefined>();
    }
};

// Walks a value that is kept.
class KeptValue {
public:
    explicit KeptValue(bool in_namespace) : in_namespace_(in_namespace) {}
    ~KeptValue() { steps += parts_ / kPartsOfAStep; }
    KeptValue(const KeptValue&) = delete;
    KeptValue& operator=(const KeptValue&) = delete;
    void check(const jinja::value& value, int level = 0) {
        constexpr int kLevels = 200;
        constexpr uint64_t kParts = 1'000'000;
        if (level > kLevels) throw std::runtime_error("a value is nested too deeply");
        if (++parts_ > kParts) throw std::runtime_error("a value is too large");
        if (in_namespace_ && namespaces.contains(value))
            throw std::runtime_error("a namespace cannot hold a namespace");
        for (const jinja::value& part : value->val_arr) check(part, level + 1);
        for (const auto& [name, part] : value->val_obj) {
            check(name, level + 1);
            check(part, level + 1);
        }
    }

private:
    static constexpr uint64_t kPartsOfAStep = 64;  // time in bounds

    const bool in_namespace_;
    uint64_t parts_ = 0;
};

// What a variable, or a member of the value of `changed`, is set to.
struct SetGuard final : jinja::expression {
    jinja::statement_ptr inner;
    const jinja::statement* changed = nullptr;

    jinja::value execute_impl(jinja::context& context) const override {
        jinja::value out = inner->execute(context);
        if (changed != nullptr && !namespaces.contains(changed->execute(context)))
            throw std::runtime_error("only members of a namespace can be set");
        KeptValue(changed != nullptr).check(out);
        return out;
    }
};

void guard_set(jinja::set_statement& set) {
    const auto* member = jinja::cast_stmt<jinja::member_expression>(set.assignee);
    if (set.val == nullptr) {
        if (member != nullptr) throw std::runtime_error("a block cannot become a member of a namespace");
        return;
    }
    auto guarded = std::make_unique<SetGuard>();
    guarded->pos = set.val->pos;
    guarded->inner = std::move(set.val);
    if (member != nullptr) guarded->changed = member->object.get();
    set.val = std::move(guarded);
}

jinja::value make_namespace(const jinja::func_args& args) {
    jinja::value made = jinja::global_builtins().at("namespace")(args);
    KeptValue(true).check(made);
    return *namespaces.insert(std::move(made)).first;
}

// As in the sandbox in which transformers renders chat templates.
void forbid_changes_of_lists() {
    static std::once_flag once;
    std::call_once(once, [] {
        // The engine shows its table as a constant, and has no other way to change it.
        auto& methods = const_cast<jinja::func_builtins&>(jinja::value_array_t().get_builtins());
        for (const char* name : {"append", "pop"}) methods.erase(name);
    });
}

// A parameter's default, which runs before the macro's body.
struct DefaultGuard final : jinja::expression {
    jinja::statement_ptr inner;

    jinja::value execute_impl(jinja::context& context) const override {
        check_bounds();
        return inner->execute(context);
    }
};

void guard(jinja::statements& body) { body.insert(body.begin(), std::make_unique<BodyGuard>()); }

void guard_defaults(jinja::statements& parameters) {
    for (jinja::statement_ptr& parameter : parameters) {
        auto* given = jinja::cast_stmt<jinja::keyword_argument_expression>(parameter);
        if (given == nullptr) continue;
        auto guarded = std::make_unique<DefaultGuard>();
        guarded->pos = given->val->pos;
        guarded->inner = std::move(given->val);
        given->val = std::move(guarded);
    }
}

void guard(jinja::statement& statement) {
    if (auto* loop = dynamic_cast<jinja::for_statement*>(&statement)) {
        guard(loop->body);
    } else if (auto* macro = dynamic_cast<jinja::macro_statement*>(&statement)) {
        guard(macro->body);
        guard_defaults(macro->args);
    } else if (auto* call = dynamic_cast<jinja::call_statement*>(&statement)) {
        guard(call->body);
        guard_defaults(call->caller_args);
    } else if (auto* set = dynamic_cast<jinja::set_statement*>(&statement)) {
        guard_set(*set);
    }
}

}  // namespace

void check_nesting(const std::vector<jinja::token>& tokens) { Nesting().check(tokens); }

void add_bounds(jinja::program& program) {
    jinja::context walk;
    walk.visitor = [&](bool, const jinja::statement* statement, const auto& parts) {
        for (const auto& [name, children] : parts) {
            for (const jinja::statement* child : children)
                if (child != nullptr) child->visit(walk);
        }
        // The engine shows its statements as constants; they are the program's.
        guard(const_cast<jinja::statement&>(*statement));
    };
    for (const jinja::statement_ptr& statement : program.body) statement->visit(walk);
}

BoundedRendering::BoundedRendering(jinja::context& context) {
    forbid_changes_of_lists();
    context.set_val("namespace", jinja::mk_val<jinja::value_func>("namespace", make_namespace));
    stack_begin = stack_here();
    steps = 0;
}

BoundedRendering::~BoundedRendering() { namespaces.clear(); }

}  // namespace refold
