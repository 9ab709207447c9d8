#include "cli/reproduction.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/output.h"
#include "cli/paper_models.h"
#include "cli/row_numbers.h"
#include "core/error.h"
#include "core/files.h"
#include "core/temporaries.h"
#include "core/text.h"
#include "eval/provenance.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "papers/planned_number.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Cells = std::vector<PaperCell>;

fs::path work_folder(const PaperTable& table, const ReproductionOptions& options) {
    if (!options.work.empty()) return options.work;
    const std::string name = table.paper + "-" + fs::path(table.path).stem().string();
    return cache_directory() / "reproduce" / name;
}

// Throws Error(usage) for a name that is none of the rows or columns.
template <class Named>
void check_names(const PaperTable& table, const char* what, const std::vector<std::string>& given,
                 const std::vector<Named>& all) {
    std::vector<std::string> names;
    for (const Named& named : all) names.push_back(named.name);
    for (const std::string& name : given) {
        if (std::ranges::find(names, name) == names.end())
            fail(ErrorCode::usage, "reproduce", "{}: there is no {} '{}'; {}", table.path, what, name,
                 suggestion(name, names));
    }
}

// Either all, or those that are named.
bool is_chosen(const std::string& name, const std::vector<std::string>& chosen) {
    return chosen.empty() || std::ranges::find(chosen, name) != chosen.end();
}

bool is_of_training(const fs::path& name) {
    const std::string file = name.filename().string();
    return file == "metrics.jsonl" || file == "events.out.tfevents.refold" ||
           (file.starts_with("kept-") && name.extension() == ".gguf");
}

class Reproduction {
public:
    Reproduction(const PaperTable& table, const ReproductionOptions& options)
        : table_(table),
          options_(options),
          run_{.table = table,
               .options = options,
               .model = options.model.empty() ? "" : resolve_model(options.model),
               .folder = work_folder(table, options),
               .numbers = KnownNumbers((work_folder(table, options) / "numbers.jsonl").string()),
               .commands = {},
               .trainings = {},
               .made = {}},
          whole_(options.rows.empty() && options.columns.empty()) {}

    ~Reproduction() {
        std::error_code none;
        fs::remove(run_.made, none);
    }
    Reproduction(const Reproduction&) = delete;
    Reproduction& operator=(const Reproduction&) = delete;

    PaperResult run() {
        check_names(table_, "row", options_.rows, table_.rows);
        check_names(table_, "column", options_.columns, table_.columns);
        check_tasks(options_.other_tasks);
        check_tasks(options_.items_of);
        PaperResult result;
        result.table = table_;
        result.table.rows.clear();
        const auto chosen = chosen_rows();
        for (size_t r = 0; r < chosen.size(); ++r) {
            if (!options_.quiet)
                log("{} {}, row {} of {}: {}", table_.paper, table_.place, r + 1, chosen.size(),
                    chosen[r]->name);
            result.table.rows.push_back(*chosen[r]);
            result.cells.push_back(cells_of(*chosen[r]));
        }
        if (whole_) remove_trainings();
        result.version = REFOLD_VERSION;
        result.date = utc_now("%Y-%m-%d");
        result.machine = cpu_name();
        result.model = options_.model;
        result.commands = run_.commands;
        result.settings = settings();
        return result;
    }

private:
    // Throws Error(usage) for a key that is no column's task.
    template <class Value>
    void check_tasks(const std::map<std::string, Value>& given) const {
        for (const auto& [task, _] : given) {
            if (std::ranges::find(table_.columns, task, &PaperColumn::task) == table_.columns.end())
                fail(ErrorCode::usage, "reproduce", "{}: no column has the task '{}'", table_.path, task);
        }
    }

    std::vector<const PaperRow*> chosen_rows() const {
        std::vector<const PaperRow*> out;
        for (const PaperRow& row : table_.rows) {
            // On one model, the rows of the table's other models would be the same again.
            if (!options_.model.empty() && row.model != table_.rows.front().model) continue;
            if (is_chosen(row.name, options_.rows)) out.push_back(&row);
        }
        return out;
    }

    std::string settings() const {
        std::vector<std::string> parts;
        const bool tasks = measures(PaperMeasure::task);
        const bool texts = measures(PaperMeasure::perplexity) || measures(PaperMeasure::loss);
        if (tasks && options_.items > 0)
            parts.push_back(fmt::format("{} items of each task", options_.items));
        for (const auto& [task, items] : options_.items_of)
            parts.push_back(fmt::format("{} of {}", items, task));
        if (texts && options_.windows > 0)
            parts.push_back(fmt::format("{} windows of a text", options_.windows));
        for (const auto& [task, other] : options_.other_tasks)
            parts.push_back(fmt::format("{} instead of {}", other, task));
        return join(parts, ", ");
    }
    bool measures(PaperMeasure measure) const {
        return std::ranges::any_of(table_.columns,
                                   [&](const PaperColumn& c) { return c.measure == measure; });
    }

    Cells cells_of(const PaperRow& row) {
        Cells cells(table_.columns.size());
        for (size_t c = 0; c < cells.size(); ++c) {
            cells[c].published = row.published[c];
            const PaperColumn& column = table_.columns[c];
            if (row.misprints.contains(column.name))
                cells[c].note = row.misprints.at(column.name);
            else if (!row.why.empty())
                cells[c].note = row.why;
            else if (column.measure == PaperMeasure::none)
                cells[c].note = column.why;
        }
        if (!row.why.empty()) return cells;
        RowModel model(run_, row);
        plan(model, cells);
        measure(model, cells);
        add_means(cells);
        return cells;
    }

    void plan(const RowModel& model, Cells& cells) const {
        if (!measures(PaperMeasure::planned)) return;
        const auto planned =
            planned_cells(table_, model.row(), load_model(model.configuration()), model.recipe());
        for (size_t c = 0; c < cells.size(); ++c)
            if (planned[c]) cells[c].here = planned[c];
    }

    void measure(RowModel& model, Cells& cells) {
        RowNumbers numbers(run_, model);
        for (size_t c = 0; c < cells.size(); ++c) {
            const PaperColumn& column = table_.columns[c];
            if (!is_measured(column)) continue;
            if (!is_chosen(column.name, options_.columns)) {
                cells[c].note = "left out";
                continue;
            }
            if (cells[c].published.empty() && is_published(c)) continue;
            if (const std::string reason = numbers.missing(column); !reason.empty()) {
                whole_ = false;
                cells[c].note = reason;
                continue;
            }
            try {
                const double here = numbers.measure(column);
                if (std::isnan(here))
                    cells[c].note = "this model has none";
                else
                    cells[c].here = here;
            } catch (const Error& error) {
                if (error.code() == ErrorCode::interrupted || error.code() == ErrorCode::internal) throw;
                log("refold: warning: row '{}', column '{}': {}", model.row().name, column.name,
                    error.what());
                whole_ = false;
                cells[c].note = "failed: see the messages";
            }
        }
    }

    void remove_trainings() const {
        std::error_code none;
        for (fs::path model : run_.trainings) {
            fs::remove(model, none);
            remove_files(model.replace_extension(".train").string(), is_of_training);
        }
    }

    // The paper prints the column for some rows: those that it leaves empty are not measured either.
    bool is_published(size_t column) const {
        return std::ranges::any_of(table_.rows,
                                   [&](const PaperRow& row) { return !row.published[column].empty(); });
    }

    void add_means(Cells& cells) const {
        for (size_t c = 0; c < cells.size(); ++c) {
            const auto& of = table_.columns[c].of;
            double sum = 0;
            size_t known = 0;
            for (size_t other = 0; other < c; ++other) {
                if (std::ranges::find(of, table_.columns[other].name) == of.end() || !cells[other].here)
                    continue;
                sum += *cells[other].here;
                ++known;
            }
            if (known > 0 && known == of.size())
                cells[c].here = sum / static_cast<double>(known) * table_.columns[c].scale;
        }
    }

    const PaperTable& table_;
    const ReproductionOptions& options_;
    ReproductionRun run_;
    // All numbers are known that the table can have: nothing needs its trainings any more.
    bool whole_;
};

}  // namespace

PaperResult reproduce(const PaperTable& table, const ReproductionOptions& options) {
    if (!table.why.empty())
        fail(ErrorCode::usage, "reproduce", "{}: {} has nothing to measure: {}", table.path, table.place,
             table.why);
    return Reproduction(table, options).run();
}

}  // namespace refold::cli
