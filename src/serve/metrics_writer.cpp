#include "serve/metrics_writer.h"

namespace refold {

std::string metric_label(const char* name, const std::string& text) {
    std::string out = fmt::format("{}=\"", name);
    for (const char c : text) {
        if (c == '\\' || c == '"') out += '\\';
        if (c == '\n')
            out += "\\n";
        else
            out += c;
    }
    return out + '"';
}

void MetricsWriter::begin(const char* name, const char* type, const char* help) {
    name_ = prefix_ + name;
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name_, help, name_, type);
}

void MetricsWriter::histogram(const char* name, const char* help, const std::vector<ModelStatus>& models,
                              Histogram SchedulerStatus::*member) {
    begin(name, "histogram", help);
    for (const ModelStatus& model : models) {
        if (!model.scheduler) continue;
        const Histogram& h = *model.scheduler.*member;
        const std::string own = label(model);
        const auto bucket = [&](const std::string& bound, uint64_t count) {
            value(count, fmt::format("{},le=\"{}\"", own, bound), "_bucket");
        };
        uint64_t below = 0;
        for (size_t i = 0; i < h.bounds.size(); ++i) {
            below += h.counts[i];
            bucket(fmt::format("{}", h.bounds[i]), below);
        }
        below += h.counts.back();
        bucket("+Inf", below);
        value(h.sum, own, "_sum");
        value(below, own, "_count");
    }
}

}  // namespace refold
