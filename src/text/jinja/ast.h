// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace refold::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
    constant,
    name,
    list,           // parts
    tuple,          // parts
    dict,           // parts: key, value, key, value...
    unary,          // text: "-" or "+"; parts[0]
    binary,         // text: the operator; parts[0], parts[1]
    logical,        // text: "and" or "or"; parts[0], parts[1]
    negation,       // "not"; parts[0]
    comparison,     // parts: the operands; operators: one fewer
    concatenation,  // "~"; parts
    conditional,    // parts: condition, value, other value (which may be null)
    attribute,      // parts[0].text
    item,           // parts[0][parts[1]]
    slice,          // within an item; parts: begin, end, step, each may be null
    call,           // parts[0](arguments)
    filter,         // parts[0] | text(arguments); parts[0] is null in a block: its text
    test            // parts[0] is text(arguments)
};

struct CallArguments {
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> named;
    ExpressionPtr more_positional, more_named;  // *list, **mapping
};

struct Expression {
    ExpressionKind kind = ExpressionKind::constant;
    std::string text = {};
    Value constant = {};
    std::vector<ExpressionPtr> parts = {};
    std::vector<std::string> operators = {};
    std::unique_ptr<CallArguments> arguments = {};
    int line = 0;
    int levels = 1;  // of expressions within it
};

struct Statement;
// A body with variables of its own, or a part of one.
struct Body {
    std::vector<std::unique_ptr<Statement>> statements;
    // Names that are set in this scope before anything reads them: undefined until then, even when an outer
    // variable has that name. Only of bodies that begin a scope.
    std::vector<std::string> undefined_first;
};

// A name, a member of a namespace, or several of them.
struct Target {
    std::string name, member;
    std::vector<Target> parts;  // unpacked; the name is empty then
    bool unpacks = false;
};

struct Data {
    std::string text;
};
struct Output {
    ExpressionPtr value;
};
struct Set {
    Target target;
    ExpressionPtr value;
};
struct SetBlock {
    Target target;
    ExpressionPtr filter;  // null: none
    Body body;
};
struct If {
    struct Branch {
        ExpressionPtr condition;
        Body body;
    };
    std::vector<Branch> branches;
    Body otherwise;
};
struct For {
    Target target;
    ExpressionPtr items, condition;
    bool recursive = false;
    Body body, otherwise;
};
// Also the body of a call block, which is a macro named "caller".
struct Macro {
    std::string name;
    std::vector<std::string> parameters;
    std::vector<ExpressionPtr> defaults;  // of the last parameters
    Body body;
    bool reads_caller = false, reads_varargs = false, reads_kwargs = false;
};
struct CallBlock {
    Macro caller;
    ExpressionPtr call;
};
struct FilterBlock {
    ExpressionPtr filter;
    Body body;
};
struct With {
    std::vector<std::pair<Target, ExpressionPtr>> values;
    Body body;
};
// {% generation %}: the text is written as it is.
struct Generation {
    Body body;
};
struct Block {
    bool scoped = false;  // sees the variables around it
    Body body;
};
struct Break {};
struct Continue {};

struct Statement {
    std::variant<Data, Output, Set, SetBlock, If, For, Macro, CallBlock, FilterBlock, With, Generation, Block,
                 Break, Continue>
        what;
    int line = 0;
};

struct Template {
    Body body;
};

}  // namespace refold::jinja
