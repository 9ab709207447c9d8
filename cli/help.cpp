#include "cli/help.h"

namespace refold::cli {
namespace {

class HelpFormatter : public CLI::Formatter {
public:
    HelpFormatter() { column_width(30); }

    std::string make_description(const CLI::App* app) const override {
        return app->get_description() + "\n\n";
    }

    std::string make_option_opts(const CLI::Option* option) const override {
        if (option->get_type_size() == 0 || option->get_type_name().empty()) return "";
        // A positional's name says what it is.
        if (option->get_positional()) return "";
        const std::string type = option->get_type_name();
        return " " + type.substr(0, type.find(':'));
    }
    std::string make_option_desc(const CLI::Option* option) const override {
        std::string text = option->get_description();
        if (option->get_required() && !option->get_positional()) text += " (required)";
        if (!option->get_default_str().empty()) text += " [default: " + option->get_default_str() + "]";
        return text;
    }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

void add_examples(CLI::App& app, std::initializer_list<const char*> lines) {
    std::string footer = "Examples:";
    for (const char* line : lines) footer += std::string("\n  ") + line;
    app.footer(footer);
}

}  // namespace refold::cli
