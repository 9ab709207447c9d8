// Compression methods. A method is one file that defines one Method: its name, its documentation, its
// options, and a pure function Model -> Model that rewrites the topology and the tensors it names. CMake
// collects the files (registry.h); recipes, the command line and the documentation read everything from here.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "calibrate/calibration.h"
#include "model/model.h"

namespace refold {

struct OptionSpec {
    enum class Kind { number, integer, boolean, choice, text };

    std::string name;
    Kind kind = Kind::text;
    std::string fallback;  // the default, written as a user would
    std::string help;
    // number and integer: smallest and largest allowed value
    double minimum = -std::numeric_limits<double>::infinity();
    double maximum = std::numeric_limits<double>::infinity();
    std::vector<std::string> choices = {};  // choice
    // Earlier names of the option, and {earlier, present} names of its choices: accepted, and replaced by the
    // present name.
    std::vector<std::string> former_names = {};
    std::vector<std::pair<std::string, std::string>> former_choices = {};
};

// The allowed values for help and errors: "number in [0, 1]", "qk | q | k".
std::string allowed_values(const OptionSpec& spec);

// The result of a step besides the model: what it decided.
struct StepReport {
    std::vector<std::string> lines;  // for people, in order
    std::string details = "{}";      // for programs: a JSON object
};

class Options;
class Work;
struct Training;

// The inputs of a method besides the model, and the report that it fills in.
struct Step {
    const Options& options;
    StepReport& report;
    // Keeps the results of long computations. Null in a dry run: tensors of the result then need their final
    // shapes and types only. Nothing long may be computed, and their values are never read.
    Work* work = nullptr;
    // Calibrated methods compare with it: the model before the first step, or the one that it was made from
    // earlier (StepInputs::original).
    const Model& original;
    // Calibration text; null when none was given. Never null for a method that asks for it
    // (Method::calibrated), except in a dry run.
    const Calibration* calibration = nullptr;
    // A hash of the source files, the original, the calibration text and all steps up to this one, for the
    // keys of results in `work` that depend on all of them.
    std::string identity = "";
    int threads = 0;  // for running the model; 0: all cores
    // For methods that train; may be null in a dry run, or when the caller gave none.
    const Training* training = nullptr;
    size_t number = 1;  // of this step in the recipe
    // Like `identity`, without this step.
    std::string identity_before = "";
    // The same on another calibration text.
    std::function<std::string(const Calibration&)> identity_before_on = {};

    // Where a model comes from that this step writes besides its result: JSON for kProvenanceKey. Null in a
    // dry run.
    std::function<std::string()> provenance = {};

    bool dry_run() const { return work == nullptr; }
};

// For methods that bring a model nearer to another one. Throws Error(usage) in a recipe's first step when the
// model is its own original, so that the step could only do nothing.
void check_has_original(const Model& model, const Step& step, const char* method);

struct Method {
    const char* name;           // as in recipes
    const char* summary;        // one line
    const char* paper;          // title and section
    const char* documentation;  // Markdown
    std::vector<OptionSpec> options;
    // Returns the compressed model. Reads weights through Model only, so that layers are streamed. Throws
    // Error(usage) for options that do not fit the model, and Error(unsupported) with the reason when an
    // earlier step left weights that the method cannot work on.
    Model (*apply)(const Model& model, Step& step);
    // True when the method looks at activations with these options and so needs calibration text. Null:
    // never.
    bool (*calibrated)(const Options& options) = nullptr;
    // True when no step may follow: the tokens have other ids afterwards, and texts are read with the
    // original's.
    bool last = false;
    // True when the method leaves all stored tensors as they are and only adds some. It can follow a step
    // that folded rows or cut tables.
    bool only_adds = false;
};

// An option as the user wrote it; `place` says where, for messages ("--set", "recipe.yaml line 4").
struct GivenOption {
    std::string name, value, place;
};

// A validated value for every option of a method.
class Options {
public:
    // Throws Error(usage) with the method, the option, the value and the allowed values: for an unknown
    // option (with the nearest name), an option given twice, and a value of another kind or out of range.
    Options(const Method& method, std::span<const GivenOption> given);

    // Throw Error(internal) when the method has no such option of that kind.
    double number(const std::string& name) const;
    int64_t integer(const std::string& name) const;
    bool boolean(const std::string& name) const;
    const std::string& text(const std::string& name) const;  // text and choice

    // Name and value of every option as text, defaults included, in the method's order.
    const std::vector<std::pair<std::string, std::string>>& entries() const { return entries_; }

private:
    using Value = std::variant<double, int64_t, bool, std::string>;
    template <typename T>
    const T& get(const std::string& name) const;

    std::map<std::string, Value> values_;
    std::vector<std::pair<std::string, std::string>> entries_;
};

}  // namespace refold
