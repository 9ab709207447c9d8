#include "text/jinja_bounds.h"

#include <stdexcept>
#include <string>

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

void begin_bounds() {
    stack_begin = stack_here();
    steps = 0;
}

}  // namespace refold
