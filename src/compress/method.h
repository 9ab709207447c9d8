// Compression methods. A method is one file that exports one Method: what it is called, what it says about
// itself, its options, and a pure function Model -> Model that rewrites the topology and the tensors it
// names. registry.cpp lists them; recipes, the command line and the documentation read everything from here.
#pragma once

#include <cstdint>
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
};

// "number in [0, 1]", "qk | q | k": what a value may be, for help and errors.
std::string allowed_values(const OptionSpec& spec);

// What an apply() did, beyond the model it returns.
struct StepReport {
    std::vector<std::string> lines;  // for people, in order
    std::string details = "{}";      // for programs: a JSON object
};

class Options;
class Work;
struct Training;

// What a method is given besides the model, and where it says what it did.
struct Step {
    const Options& options;
    StepReport& report;
    // Keeps the results of long computations. Null in a dry run: the tensors of the result must then have
    // their final shapes and types, but nothing long is computed and their values are never read.
    Work* work = nullptr;
    // The model before the first step, or the one that it was made of earlier (StepInputs::original): what
    // calibrated methods compare with.
    const Model& original;
    // Text to calibrate with; null when none was given. Methods that need it say so with Method::calibrated
    // and are given it, except in a dry run.
    const Calibration* calibration = nullptr;
    // Stands for the original, the calibration and all steps up to this one: names results in `work` that
    // depend on all of them.
    std::string identity = "";
    int threads = 0;  // for running the model; 0: all cores
    // For methods that train; may be null in a dry run, and where nobody gave it.
    const Training* training = nullptr;
    size_t number = 1;  // of this step in the recipe
    // Like `identity`, of everything before this step.
    std::string identity_before = "";

    bool dry_run() const { return work == nullptr; }
};

struct Method {
    const char* name;           // as in recipes
    const char* summary;        // one line
    const char* paper;          // title and section
    const char* documentation;  // Markdown
    std::vector<OptionSpec> options;
    // Returns the compressed model; reads weights only through Model, so that layers are streamed. Throws
    // Error(usage) for options that do not fit the model, Error(unsupported) saying why when an earlier step
    // left weights that this method cannot work on.
    Model (*apply)(const Model& model, Step& step);
    // True when it looks at activations with these options, and so needs calibration text.
    bool (*calibrated)(const Options& options) = nullptr;
};

// An option as somebody wrote it; `place` is where, for messages ("--set", "recipe.yaml line 4").
struct GivenOption {
    std::string name, value, place;
};

// One validated value for every option of a method.
class Options {
public:
    // Throws Error(usage) with the method, the option, the value and what is allowed: an unknown option (with
    // the nearest name), an option given twice, a value of another kind or out of range.
    Options(const Method& method, std::span<const GivenOption> given);

    // Throws Error(internal) when the method has no such option of that kind.
    double number(const std::string& name) const;
    int64_t integer(const std::string& name) const;
    bool boolean(const std::string& name) const;
    const std::string& text(const std::string& name) const;  // text and choice

    // Name and value as text of every option, defaults included, in the method's order.
    const std::vector<std::pair<std::string, std::string>>& entries() const { return entries_; }

private:
    using Value = std::variant<double, int64_t, bool, std::string>;
    template <typename T>
    const T& get(const std::string& name) const;

    std::map<std::string, Value> values_;
    std::vector<std::pair<std::string, std::string>> entries_;
};

// Every method, in the order of the documentation.
std::span<const Method* const> methods();
// Throws Error(usage) with the nearest name; `place` as in GivenOption, may be empty.
const Method& find_method(const std::string& name, const std::string& place = "");

}  // namespace refold
