#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "text/jinja/lexer.h"

namespace refold::jinja {
namespace {

constexpr int kDeepestExpression = 300, kDeepestBlock = 100, kDeepestParse = 160;

class Parser {
public:
    Parser(std::vector<Token> tokens, bool is_task) : tokens_(std::move(tokens)), is_task_(is_task) {}

    Template run() {
        Template out;
        body(out.body, {});
        if (now().type != TokenType::end) fail("unexpected end of a block");
        return out;
    }

private:
    using Names = std::vector<std::string_view>;

    // --- tokens

    const Token& now() const { return tokens_[at_]; }
    const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    [[noreturn]] void fail(const std::string& problem) const { fail(problem, now().line); }
    [[noreturn]] static void fail(const std::string& problem, int line) {
        throw TemplateError(fmt::format("line {}: {}", line, problem));
    }
    static std::string shown(const Token& token) {
        switch (token.type) {
            case TokenType::data: return "text outside of marks";
            case TokenType::expression_begin: return "'{{'";
            case TokenType::expression_end: return "'}}'";
            case TokenType::statement_begin: return "'{%'";
            case TokenType::statement_end: return "'%}'";
            case TokenType::text: return "a text";
            case TokenType::number: return "a number";
            case TokenType::end: return "the end of the template";
            default: return fmt::format("'{}'", token.text);
        }
    }
    const Token& take() {
        const Token& token = tokens_[at_];
        if (token.type != TokenType::end) ++at_;
        return token;
    }
    bool is_mark(std::string_view mark) const { return now().type == TokenType::mark && now().text == mark; }
    bool is_name(std::string_view name) const { return now().type == TokenType::name && now().text == name; }
    bool is_one_of(const Names& names) const {
        return now().type == TokenType::name && std::ranges::find(names, now().text) != names.end();
    }
    bool skip_mark(std::string_view mark) {
        if (!is_mark(mark)) return false;
        take();
        return true;
    }
    bool skip_name(std::string_view name) {
        if (!is_name(name)) return false;
        take();
        return true;
    }
    void expect_mark(std::string_view mark) {
        if (!skip_mark(mark)) fail(fmt::format("expected '{}', got {}", mark, shown(now())));
    }
    std::string expect_name() {
        if (now().type != TokenType::name) fail(fmt::format("expected a name, got {}", shown(now())));
        return take().text;
    }
    void expect(TokenType type, const char* what) {
        if (now().type != type) fail(fmt::format("expected {}, got {}", what, shown(now())));
        take();
    }

    // --- expressions

    class Level {
    public:
        explicit Level(Parser& parser) : parser_(parser) {
            if (++parser_.level_ > kDeepestParse) parser_.fail("an expression is nested too deeply");
        }
        ~Level() { --parser_.level_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;

    private:
        Parser& parser_;
    };

    ExpressionPtr make(ExpressionKind kind, int line, std::string text = "") const {
        auto out = std::make_unique<Expression>();
        out->kind = kind;
        out->line = line;
        out->text = std::move(text);
        return out;
    }
    void add(Expression& to, ExpressionPtr part) const {
        if (part) {
            to.levels = std::max(to.levels, part->levels + 1);
            if (to.levels > kDeepestExpression)
                fail("an expression is too long or nested too deeply", to.line);
        }
        to.parts.push_back(std::move(part));
    }

    ExpressionPtr expression() {
        const Level level(*this);
        ExpressionPtr value = disjunction();
        while (is_name("if")) {
            const int line = take().line;
            auto out = make(ExpressionKind::conditional, line);
            add(*out, disjunction());
            add(*out, std::move(value));
            add(*out, skip_name("else") ? expression() : nullptr);
            value = std::move(out);
        }
        return value;
    }

    // A chain of operators on the same level, from left to right.
    template <typename Operand>
    ExpressionPtr chain(ExpressionKind kind, TokenType type, const Names& operators, Operand operand) {
        ExpressionPtr left = operand();
        while (now().type == type && std::ranges::find(operators, now().text) != operators.end()) {
            auto out = make(kind, now().line, take().text);
            add(*out, std::move(left));
            add(*out, operand());
            left = std::move(out);
        }
        return left;
    }
    ExpressionPtr disjunction() {
        return chain(ExpressionKind::logical, TokenType::name, {"or"}, [&] { return conjunction(); });
    }
    ExpressionPtr conjunction() {
        return chain(ExpressionKind::logical, TokenType::name, {"and"}, [&] { return negation(); });
    }
    ExpressionPtr negation() {
        if (!is_name("not")) return comparison();
        const Level level(*this);
        auto out = make(ExpressionKind::negation, take().line);
        add(*out, negation());
        return out;
    }
    ExpressionPtr comparison() {
        ExpressionPtr first = sum();
        auto out = make(ExpressionKind::comparison, first->line);
        for (;;) {
            if (now().type == TokenType::mark &&
                std::ranges::find(kComparisons, now().text) != std::end(kComparisons)) {
                out->operators.push_back(take().text);
            } else if (skip_name("in")) {
                out->operators.emplace_back("in");
            } else if (is_name("not") && ahead().type == TokenType::name && ahead().text == "in") {
                take();
                take();
                out->operators.emplace_back("not in");
            } else {
                break;
            }
            if (first) add(*out, std::move(first));
            add(*out, sum());
        }
        return out->operators.empty() ? std::move(first) : std::move(out);
    }
    ExpressionPtr sum() {
        return chain(ExpressionKind::binary, TokenType::mark, {"+", "-"}, [&] { return concatenation(); });
    }
    ExpressionPtr concatenation() {
        ExpressionPtr first = product();
        if (!is_mark("~")) return first;
        auto out = make(ExpressionKind::concatenation, now().line);
        add(*out, std::move(first));
        while (skip_mark("~")) add(*out, product());
        return out;
    }
    ExpressionPtr product() {
        return chain(ExpressionKind::binary, TokenType::mark, {"*", "/", "//", "%"}, [&] { return power(); });
    }
    ExpressionPtr power() {
        return chain(ExpressionKind::binary, TokenType::mark, {"**"}, [&] { return unary(true); });
    }
    ExpressionPtr unary(bool with_filters) {
        const Level level(*this);
        ExpressionPtr out;
        if (is_mark("-") || is_mark("+")) {
            const Token& sign = take();
            out = make(ExpressionKind::unary, sign.line, sign.text);
            add(*out, unary(false));
        } else {
            out = primary();
        }
        out = postfix(std::move(out));
        return with_filters ? filters(std::move(out)) : std::move(out);
    }

    ExpressionPtr constant(Value value, int line) const {
        auto out = make(ExpressionKind::constant, line);
        out->constant = std::move(value);
        return out;
    }

    ExpressionPtr primary() {
        const Token& token = now();
        if (token.type == TokenType::name) {
            take();
            if (token.text == "true" || token.text == "True") return constant(true, token.line);
            if (token.text == "false" || token.text == "False") return constant(false, token.line);
            if (token.text == "none" || token.text == "None") return constant({}, token.line);
            read(token.text);
            return make(ExpressionKind::name, token.line, token.text);
        }
        if (token.type == TokenType::text) {
            std::string text;
            while (now().type == TokenType::text) text += take().text;
            return constant(Value::text(std::move(text)), token.line);
        }
        if (token.type == TokenType::number) {
            take();
            return constant(token.number, token.line);
        }
        if (skip_mark("(")) {
            ExpressionPtr out = tuple({.empty = true});
            expect_mark(")");
            return out;
        }
        if (is_mark("[")) return list();
        if (is_mark("{")) return dict();
        fail(fmt::format("unexpected {}", shown(token)));
    }

    struct TupleOptions {
        bool empty = false;         // may have no entries
        bool conditional = true;    // entries may be conditional expressions
        std::string_view end = {};  // a name that ends it
    };
    bool ends_tuple(const TupleOptions& options) const {
        return now().type == TokenType::expression_end || now().type == TokenType::statement_end ||
               is_mark(")") || (!options.end.empty() && is_name(options.end));
    }
    // One expression, or a tuple of several.
    ExpressionPtr tuple(const TupleOptions& options) {
        auto out = make(ExpressionKind::tuple, now().line);
        bool is_tuple = false;
        for (;;) {
            if (!out->parts.empty()) expect_mark(",");
            if (ends_tuple(options)) break;
            add(*out, options.conditional ? expression() : disjunction());
            if (!is_mark(",")) break;
            is_tuple = true;
        }
        if (is_tuple) return out;
        if (!out->parts.empty()) return std::move(out->parts.front());
        if (!options.empty) fail(fmt::format("expected an expression, got {}", shown(now())));
        return out;
    }
    ExpressionPtr list() {
        auto out = make(ExpressionKind::list, take().line);
        while (!is_mark("]")) {
            if (!out->parts.empty()) expect_mark(",");
            if (is_mark("]")) break;
            add(*out, expression());
        }
        expect_mark("]");
        return out;
    }
    ExpressionPtr dict() {
        auto out = make(ExpressionKind::dict, take().line);
        while (!is_mark("}")) {
            if (!out->parts.empty()) expect_mark(",");
            if (is_mark("}")) break;
            add(*out, expression());
            expect_mark(":");
            add(*out, expression());
        }
        expect_mark("}");
        return out;
    }

    ExpressionPtr postfix(ExpressionPtr value) {
        for (;;) {
            if (is_mark(".")) {
                value = member(std::move(value));
            } else if (is_mark("[")) {
                value = subscript(std::move(value));
            } else if (is_mark("(")) {
                value = call(std::move(value));
            } else {
                return value;
            }
        }
    }
    ExpressionPtr filters(ExpressionPtr value) {
        for (;;) {
            if (is_mark("|")) {
                value = filter(std::move(value));
            } else if (is_name("is")) {
                value = test(std::move(value));
            } else if (is_mark("(")) {
                value = call(std::move(value));
            } else {
                return value;
            }
        }
    }
    ExpressionPtr member(ExpressionPtr value) {
        const int line = take().line;
        const Token& name = take();
        if (name.type == TokenType::name) {
            auto out = make(ExpressionKind::attribute, line, name.text);
            add(*out, std::move(value));
            return out;
        }
        if (name.type != TokenType::number || name.number.is_float())
            fail("expected a name or a number", name.line);
        auto out = make(ExpressionKind::item, line);
        add(*out, std::move(value));
        add(*out, constant(name.number, line));
        return out;
    }
    ExpressionPtr subscript(ExpressionPtr value) {
        auto out = make(ExpressionKind::item, take().line);
        add(*out, std::move(value));
        auto several = make(ExpressionKind::tuple, out->line);
        while (!is_mark("]")) {
            if (!several->parts.empty()) expect_mark(",");
            add(*several, subscribed());
        }
        expect_mark("]");
        add(*out, several->parts.size() == 1 ? std::move(several->parts.front()) : std::move(several));
        return out;
    }
    ExpressionPtr subscribed() {
        auto slice = make(ExpressionKind::slice, now().line);
        ExpressionPtr begin;
        if (!is_mark(":")) begin = expression();
        if (!is_mark(":")) return begin;
        take();
        const auto ends = [&] { return is_mark("]") || is_mark(","); };
        add(*slice, std::move(begin));
        add(*slice, is_mark(":") || ends() ? nullptr : expression());
        add(*slice, skip_mark(":") && !ends() ? expression() : nullptr);
        return slice;
    }
    ExpressionPtr call(ExpressionPtr value) {
        auto out = make(ExpressionKind::call, now().line);
        add(*out, std::move(value));
        out->arguments = arguments(*out);
        return out;
    }

    std::unique_ptr<CallArguments> arguments(Expression& of) {
        auto out = std::make_unique<CallArguments>();
        const int line = now().line;
        expect_mark("(");
        const auto ensure = [&](bool valid) {
            if (!valid) fail("the arguments of a call are in a wrong order", line);
        };
        const auto argument = [&] {
            ExpressionPtr value = expression();
            of.levels = std::max(of.levels, value->levels + 1);
            return value;
        };
        bool first = true;
        while (!is_mark(")")) {
            if (!std::exchange(first, false)) {
                expect_mark(",");
                if (is_mark(")")) break;
            }
            if (skip_mark("*")) {
                ensure(!out->more_positional && !out->more_named);
                out->more_positional = argument();
            } else if (skip_mark("**")) {
                ensure(!out->more_named);
                out->more_named = argument();
            } else if (now().type == TokenType::name && ahead().type == TokenType::mark &&
                       ahead().text == "=") {
                ensure(!out->more_named);
                std::string name = take().text;
                take();
                const bool twice =
                    std::ranges::any_of(out->named, [&](const auto& n) { return n.first == name; });
                if (twice) fail(fmt::format("the argument '{}' is given twice", name), line);
                out->named.emplace_back(std::move(name), argument());
            } else {
                ensure(!out->more_positional && !out->more_named && out->named.empty());
                out->positional.push_back(argument());
            }
        }
        expect_mark(")");
        if (of.levels > kDeepestExpression) fail("an expression is too long or nested too deeply", of.line);
        return out;
    }
    std::string dotted_name() {
        std::string name = expect_name();
        while (skip_mark(".")) name += "." + expect_name();
        return name;
    }
    // Within a condition's branches, Jinja refuses an unknown name only when it gets there.
    void check_known(bool known, const char* what, const Expression& use) const {
        if (!known && !around_.conditional) fail(fmt::format("no {} named '{}'", what, use.text), use.line);
    }
    // `value` is null in the statements "filter" and "set": the filter applies to their text.
    ExpressionPtr filter(ExpressionPtr value, bool has_mark = true) {
        if (has_mark) take();
        auto out = make(ExpressionKind::filter, now().line, dotted_name());
        check_known(is_filter(out->text), "filter", *out);
        add(*out, std::move(value));
        if (is_mark("(")) {
            out->arguments = arguments(*out);
        } else {
            out->arguments = std::make_unique<CallArguments>();
        }
        return out;
    }
    ExpressionPtr test(ExpressionPtr value) {
        take();
        const bool negated = skip_name("not");
        auto out = make(ExpressionKind::test, now().line, dotted_name());
        check_known(is_test(out->text), "test", *out);
        add(*out, std::move(value));
        out->arguments = std::make_unique<CallArguments>();
        const TokenType type = now().type;
        if (is_mark("(")) {
            out->arguments = arguments(*out);
        } else if ((type == TokenType::name || type == TokenType::text || type == TokenType::number ||
                    is_mark("[") || is_mark("{")) &&
                   !is_one_of({"else", "or", "and"})) {
            if (is_name("is")) fail("tests cannot follow each other");
            const Level level(*this);
            ExpressionPtr argument = postfix(primary());
            out->levels = std::max(out->levels, argument->levels + 1);
            out->arguments->positional.push_back(std::move(argument));
        }
        if (!negated) return out;
        auto inverted = make(ExpressionKind::negation, out->line);
        add(*inverted, std::move(out));
        return inverted;
    }

    // --- statements

    // Statements up to one whose word is in `ends`, which is left; without ends: up to the end.
    void body(Body& to, const Names& ends) {
        if (++blocks_ > kDeepestBlock) fail("the blocks are nested too deeply");
        for (;;) {
            const Token& token = now();
            if (token.type == TokenType::end) {
                if (!ends.empty()) fail(fmt::format("the template ends, expected '{}'", ends.back()));
                break;
            }
            if (token.type == TokenType::data) {
                add_statement(to, Data{take().text}, token.line);
            } else if (token.type == TokenType::expression_begin) {
                take();
                add_statement(to, Output{tuple({})}, token.line);
                expect(TokenType::expression_end, "'}}'");
            } else {
                take();
                if (is_one_of(ends)) break;
                statement(to, token.line);
                expect(TokenType::statement_end, "'%}'");
            }
        }
        --blocks_;
    }
    // The body of a statement, whose mark ends here; takes the word that ends it.
    std::string block(Body& to, const Names& ends) {
        skip_mark(":");
        expect(TokenType::statement_end, "'%}'");
        body(to, ends);
        return take().text;
    }
    template <typename What>
    static void add_statement(Body& to, What what, int line) {
        auto out = std::make_unique<Statement>();
        out->what = std::move(what);
        out->line = line;
        to.statements.push_back(std::move(out));
    }

    void statement(Body& to, int line) {
        const std::string word = expect_name();
        if (word == "set") {
            set(to, line);
        } else if (word == "if") {
            conditional(to, line);
        } else if (word == "for") {
            loop(to, line);
        } else if (word == "macro") {
            Macro out;
            out.name = expect_name();
            signature(out);
            macro_body(out, "endmacro");
            add_statement(to, std::move(out), line);
        } else if (word == "call") {
            call_block(to, line);
        } else if (word == "filter") {
            FilterBlock out;
            out.filter = filter_chain(filter(nullptr, false));
            inner_block(out.body, {"endfilter"});
            add_statement(to, std::move(out), line);
        } else if (word == "with") {
            with(to, line);
        } else if (word == "generation" && !is_task_) {
            Generation out;
            inner_block(out.body, {"endgeneration"});
            add_statement(to, std::move(out), line);
        } else if (word == "block") {
            block_statement(to, line);
        } else if (word == "print") {
            print(to, line);
        } else if ((word == "break" || word == "continue") && !is_task_) {
            if (!around_.loop) fail(fmt::format("'{}' stands outside of a loop", word), line);
            if (word == "break") {
                add_statement(to, Break{}, line);
            } else {
                add_statement(to, Continue{}, line);
            }
        } else if (word == "extends" || word == "include" || word == "import" || word == "from") {
            fail(fmt::format("'{}' is not supported: a template cannot read others", word), line);
        } else {
            fail(fmt::format("unknown statement '{}'", word), line);
        }
    }

    void set(Body& to, int line) {
        Target to_set = target({.members = true});
        if (skip_mark("=")) {
            Set out{std::move(to_set), tuple({})};
            return add_statement(to, std::move(out), line);
        }
        SetBlock out{.target = std::move(to_set), .filter = nullptr, .body = {}};
        if (is_mark("|")) out.filter = filter_chain(filter(nullptr));
        inner_block(out.body, {"endset"});
        add_statement(to, std::move(out), line);
    }
    ExpressionPtr filter_chain(ExpressionPtr first) {
        while (is_mark("|")) first = filter(std::move(first));
        return first;
    }
    // A body apart from the loop around it: "break" cannot stand in it.
    std::string inner_block(Body& to, const Names& ends) {
        const Around around = std::exchange(around_, {});
        std::string word = block(to, ends);
        around_ = around;
        return word;
    }

    void conditional(Body& to, int line) {
        If out;
        const bool conditional = std::exchange(around_.conditional, true);
        for (;;) {
            If::Branch branch;
            branch.condition = tuple({.conditional = false});
            const std::string word = block(branch.body, {"elif", "else", "endif"});
            out.branches.push_back(std::move(branch));
            if (word == "elif") continue;
            if (word == "else") block(out.otherwise, {"endif"});
            break;
        }
        around_.conditional = conditional;
        add_statement(to, std::move(out), line);
    }

    void loop(Body& to, int line) {
        For out;
        ++within_for_;
        out.target = target({.end = "in"});
        if (!skip_name("in")) fail(fmt::format("expected 'in', got {}", shown(now())));
        out.items = tuple({.conditional = false, .end = "recursive"});
        if (skip_name("if")) out.condition = expression();
        out.recursive = skip_name("recursive");
        const Around around = std::exchange(around_, {.loop = true});
        const std::string word = block(out.body, {"else", "endfor"});
        around_ = {.loop = around.loop};
        if (word == "else") block(out.otherwise, {"endfor"});
        around_ = around;
        --within_for_;
        add_statement(to, std::move(out), line);
    }

    void signature(Macro& macro) {
        expect_mark("(");
        while (!is_mark(")")) {
            if (!macro.parameters.empty()) expect_mark(",");
            std::string name = expect_name();
            if (std::ranges::find(macro.parameters, name) != macro.parameters.end())
                fail(fmt::format("the parameter '{}' is given twice", name));
            macro.parameters.push_back(std::move(name));
            if (skip_mark("=")) {
                macro.defaults.push_back(expression());
            } else if (!macro.defaults.empty()) {
                fail("a parameter without a default follows one with a default");
            }
        }
        expect_mark(")");
    }
    void macro_body(Macro& macro, std::string_view end) {
        macros_.push_back(&macro);
        inner_block(macro.body, {end});
        macros_.pop_back();
        const auto given = std::ranges::find(macro.parameters, "caller");
        if (macro.reads_caller && given != macro.parameters.end()) {
            const auto without_default = macro.parameters.size() - macro.defaults.size();
            if (static_cast<size_t>(given - macro.parameters.begin()) < without_default)
                fail("the parameter 'caller' of a macro needs a default");
        }
    }
    void call_block(Body& to, int line) {
        CallBlock out;
        out.caller.name = "caller";
        if (is_mark("(")) signature(out.caller);
        out.call = expression();
        if (out.call->kind != ExpressionKind::call) fail("expected a call", line);
        macro_body(out.caller, "endcall");
        add_statement(to, std::move(out), line);
    }
    void with(Body& to, int line) {
        With out;
        while (now().type != TokenType::statement_end) {
            if (!out.values.empty()) expect_mark(",");
            Target name = target({});
            expect_mark("=");
            ExpressionPtr value = expression();
            out.values.emplace_back(std::move(name), std::move(value));
        }
        const bool conditional = std::exchange(around_.conditional, false);
        block(out.body, {"endwith"});
        around_.conditional = conditional;
        add_statement(to, std::move(out), line);
    }
    void block_statement(Body& to, int line) {
        const std::string name = expect_name();
        if (!blocks_seen_.insert(name).second) fail(fmt::format("block '{}' defined twice", name), line);
        Block out;
        out.scoped = skip_name("scoped");
        if (is_name("required")) fail("'required' is not supported: a template cannot extend others");
        inner_block(out.body, {"endblock"});
        skip_name(name);
        add_statement(to, std::move(out), line);
    }
    void print(Body& to, int line) {
        bool first = true;
        while (now().type != TokenType::statement_end) {
            if (!std::exchange(first, false)) expect_mark(",");
            add_statement(to, Output{expression()}, line);
        }
    }

    struct TargetOptions {
        bool members = false;  // NAMESPACE.MEMBER
        std::string_view end = {};
    };
    Target one_target(const TargetOptions& options) {
        if (skip_mark("(")) {
            const Level level(*this);
            Target out = target({.members = false});
            expect_mark(")");
            return out;
        }
        static const std::set<std::string, std::less<>> kConstants = {"true", "false", "none",
                                                                      "True", "False", "None"};
        const int line = now().line;
        Target out;
        out.name = expect_name();
        if (kConstants.contains(out.name)) fail(fmt::format("'{}' cannot be set", out.name), line);
        if (options.members && skip_mark(".")) {
            out.member = expect_name();
        } else {
            store(out.name);
        }
        return out;
    }
    Target target(const TargetOptions& options) {
        Target out;
        const auto ends = [&] {
            return now().type == TokenType::statement_end || is_mark(")") ||
                   (!options.end.empty() && is_name(options.end));
        };
        for (;;) {
            if (!out.parts.empty()) expect_mark(",");
            if (ends() && !out.parts.empty()) break;
            out.parts.push_back(one_target(options));
            if (!is_mark(",")) break;
            out.unpacks = true;
        }
        return out.unpacks ? std::move(out) : std::move(out.parts.front());
    }

    // --- names

    void store(const std::string& name) const {
        if (within_for_ > 0 && name == "loop") fail("the variable 'loop' cannot be set within a loop");
    }
    void read(const std::string& name) {
        for (Macro* macro : macros_) {
            macro->reads_caller = macro->reads_caller || name == "caller";
            macro->reads_varargs = macro->reads_varargs || name == "varargs";
            macro->reads_kwargs = macro->reads_kwargs || name == "kwargs";
        }
    }

    static constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};

    const std::vector<Token> tokens_;
    const bool is_task_;
    size_t at_ = 0;
    int level_ = 0, blocks_ = 0, within_for_ = 0;
    struct Around {
        bool loop = false, conditional = false;
    } around_;
    std::vector<Macro*> macros_;
    std::set<std::string> blocks_seen_;
};

}  // namespace

Template parse(const std::string& source, bool is_task) {
    const LexerOptions options{
        .trim_blocks = !is_task, .lstrip_blocks = !is_task, .keep_last_newline = is_task};
    Template out = Parser(tokenize(source, options), is_task).run();
    find_undefined_names(out);
    return out;
}

}  // namespace refold::jinja
