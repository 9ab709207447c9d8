// Writes the comparison as Markdown, for model cards, issues and pull requests.
#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"
#include "report/markup.h"
#include "report/measures.h"
#include "report/report.h"

namespace refold {
namespace {

std::string hashes_text(const FileHashes& hashes, const std::string& file) {
    std::string out;
    for (const auto& [name, hash] : hashes)
        out += fmt::format("- {}: SHA-256 {}\n", escape_markdown(name.empty() ? file : name),
                           markdown_hash(hash));
    return out;
}

}  // namespace

std::string markdown_table(const Comparison& c) {
    std::string out = "| |", rule = "|---|";
    for (const auto& variant : c.variants) {
        out += fmt::format(" {} |", escape_markdown(variant.name));
        rule += "---:|";
    }
    out += "\n" + rule + "\n";
    for (const auto& measure : measures(c)) {
        out += fmt::format("| {}{} |", measure.part ? "… " : "", escape_markdown(measure.name));
        for (const auto& variant : c.variants) {
            const std::string delta = change(measure, variant, c.variants.front());
            out += fmt::format(" {}{} |", escape_markdown(value_text(measure, variant)),
                               delta.empty() ? "" : fmt::format(" ({})", escape_markdown(delta)));
        }
        out += "\n";
    }
    std::string protocols;
    for (const auto& list : {perplexities(c), task_metrics(c)}) {
        for (const auto& quality : list) {
            if (quality.protocol.empty()) continue;
            const std::string line =
                fmt::format("- {}: {}\n", escape_markdown(quality.name), escape_markdown(quality.protocol));
            if (protocols.find(line) == std::string::npos) protocols += line;
        }
    }
    return out + (protocols.empty() ? "" : "\n" + protocols);
}

std::string to_markdown(const Comparison& c) {
    std::string out = fmt::format("# {}\n\n", escape_markdown(c.title));
    if (!c.variants.empty()) out += markdown_table(c) + "\n";
    for (const auto& note : c.notes) out += escape_markdown(note) + "\n\n";
    std::string topologies;
    for (const auto& variant : c.variants) {
        if (variant.topology)
            topologies += fmt::format("- {}: {}\n", escape_markdown(variant.name),
                                      escape_markdown(topology_summary(*variant.topology)));
    }
    if (!topologies.empty()) out += "## Where the weights come from\n\n" + topologies + "\n";
    out += "## To reproduce\n\n";
    if (!c.version.empty()) out += fmt::format("- refold {}\n", escape_markdown(c.version));
    if (!c.date.empty()) out += fmt::format("- {}\n", escape_markdown(c.date));
    if (const auto cpu = processor_text(c.machine); !cpu.empty())
        out += fmt::format("- {}\n", escape_markdown(cpu));
    out += hashes_text(c.hashes, c.source);
    for (const auto& variant : c.variants) {
        if (!same_files(variant.hashes, c.hashes)) out += hashes_text(variant.hashes, variant.file);
    }
    out += "\n";
    if (!c.commands.empty()) out += markdown_code(join(c.commands, "\n"), "sh");
    for (const auto& variant : c.variants) {
        if (variant.recipe.empty()) continue;
        out += fmt::format("Recipe of {}:\n\n", escape_markdown(variant.name)) +
               markdown_code(variant.recipe, "yaml");
    }
    return out;
}

}  // namespace refold
