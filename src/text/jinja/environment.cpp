#include "text/jinja/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "text/jinja/budget.h"
#include "text/jinja/parser.h"

namespace refold::jinja {
namespace {

const std::map<std::string_view, const Definition*>& filters() {
    static const auto kFilters = [] {
        std::map<std::string_view, const Definition*> out;
        for (const Definitions* part : {&text_filters(), &list_filters()})
            for (const auto& [name, definition] : *part) out.emplace(name, &definition);
        return out;
    }();
    return kFilters;
}

std::string_view bare(std::string_view parameter) {
    return parameter.starts_with('/') ? parameter.substr(1) : parameter;
}

}  // namespace

void Call::fail(const std::string& problem) const {
    throw TemplateError(fmt::format("{}: {}", name, problem));
}

const std::string& Call::text(size_t i) const {
    check_defined(value(i));
    if (!value(i).is_text())
        fail(fmt::format("argument {} is not a text but {}", i + 1, value(i).type_name()));
    return value(i).str();
}

int64_t Call::integer(size_t i) const {
    check_defined(value(i));
    if (!value(i).is_integral()) fail(fmt::format("argument {} is not an integer of 64 bits", i + 1));
    return value(i).as_int();
}

Value apply(const Definition& definition, Call call) {
    if (definition.any) return definition.implementation(call);
    const auto& parameters = definition.parameters;
    const Arguments& given = call.given;
    if (given.positional.size() > parameters.size())
        call.fail(
            fmt::format("got {} arguments, expected at most {}", given.positional.size(), parameters.size()));
    call.arguments.resize(parameters.size());
    std::ranges::copy(given.positional, call.arguments.begin());
    for (const auto& [name, value] : given.named) {
        const auto parameter = std::ranges::find(parameters, name);
        if (parameter == parameters.end()) call.fail(fmt::format("unexpected keyword argument '{}'", name));
        auto& argument = call.arguments[static_cast<size_t>(parameter - parameters.begin())];
        if (argument) call.fail(fmt::format("multiple values for argument '{}'", name));
        argument = value;
    }
    for (size_t i = 0; i < definition.required; ++i)
        if (!call.has(i)) call.fail(fmt::format("the argument '{}' is missing", bare(parameters[i])));
    return definition.implementation(call);
}

const Definition* find_filter(const std::string& name) {
    const auto found = filters().find(name);
    return found == filters().end() ? nullptr : found->second;
}

bool is_filter(const std::string& name) { return find_filter(name) != nullptr; }
bool is_test(const std::string& name) { return find_test(name) != nullptr; }

Value call_filter(Environment& environment, const std::string& name, const Value& value,
                  const Arguments& arguments) {
    // The filters that know escaped text; in Python, others would give escaped text as well.
    static constexpr std::string_view kOfMarkup[] = {"safe",   "e",     "escape", "forceescape", "string",
                                                     "length", "count", "tojson", "default",     "d"};
    const Definition* filter = find_filter(name);
    if (filter == nullptr) throw TemplateError(fmt::format("no filter named '{}'", name));
    if (value.is_text() && value.as_text().markup &&
        std::ranges::find(kOfMarkup, name) == std::end(kOfMarkup))
        throw TemplateError(fmt::format("the filter '{}' of escaped text is not supported", name));
    count_steps(1);
    return apply(*filter, {.environment = environment, .name = name, .self = value, .given = arguments});
}

bool call_test(Environment& environment, const std::string& name, const Value& value,
               const Arguments& arguments) {
    const Definition* test = find_test(name);
    if (test == nullptr) throw TemplateError(fmt::format("no test named '{}'", name));
    count_steps(1);
    return truth(apply(*test, {.environment = environment, .name = name, .self = value, .given = arguments}));
}

}  // namespace refold::jinja
