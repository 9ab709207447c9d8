// Writes samples in Prometheus' text format (0.0.4).
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "serve/metrics.h"

namespace refold {

// `name="text"`, escaped as the format requires.
std::string metric_label(const char* name, const std::string& text);

class MetricsWriter {
public:
    // Every metric's name begins with `prefix`; every sample of a model has `more` beside its name as a
    // label.
    explicit MetricsWriter(std::string prefix, const std::string& more = "")
        : prefix_(std::move(prefix)), more_(more.empty() ? "" : "," + more) {}

    void begin(const char* name, const char* type, const char* help);
    // A sample of the metric begun.
    template <typename Number>
    void value(Number number, const std::string& labels = "", const char* suffix = "") {
        const bool any = !labels.empty();
        fmt::format_to(std::back_inserter(text_), "{}{}{}{}{} {}\n", name_, suffix, any ? "{" : "", labels,
                       any ? "}" : "", number);
    }
    template <typename Number>
    void one(const char* name, const char* type, const char* help, Number number) {
        begin(name, type, help);
        value(number);
    }

    // What the schedulers of models count: a sample for each model, of what `number` makes of its status.
    template <typename Number>
    void each_model(const char* name, const char* type, const char* help,
                    const std::vector<ModelStatus>& models, Number&& number) {
        begin(name, type, help);
        for (const ModelStatus& model : models)
            if (model.scheduler) value(number(*model.scheduler), label(model));
    }
    // Several samples for each model; `samples` calls its second argument with each number and its label.
    template <typename Samples>
    void several(const char* name, const char* type, const char* help, const std::vector<ModelStatus>& models,
                 Samples&& samples) {
        begin(name, type, help);
        for (const ModelStatus& model : models) {
            if (!model.scheduler) continue;
            samples(*model.scheduler,
                    [&](auto number, const std::string& more) { value(number, label(model) + "," + more); });
        }
    }
    void histogram(const char* name, const char* help, const std::vector<ModelStatus>& models,
                   Histogram SchedulerStatus::*member);

    std::string take() { return std::move(text_); }

private:
    std::string label(const ModelStatus& model) const {
        return metric_label("model_name", model.name) + more_;
    }

    const std::string prefix_, more_;
    std::string name_, text_;
};

}  // namespace refold
