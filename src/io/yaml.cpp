#include "io/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <set>
#include <sstream>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

// Real files stay far below. An alias counts as all that it stands for, because what walks the nodes comes
// there each time: few lines of aliases of aliases would be billions of nodes.
constexpr size_t kMostBytes = size_t{16} << 20, kDeepest = 64, kMostNodes = 1 << 20;

// Reads a text without making nodes.
class Watch : public YAML::EventHandler {
public:
    Watch(const char* component, const std::string& label) : component_(component), label_(label) {}

    int documents = 0;

    void OnDocumentStart(const YAML::Mark&) override { ++documents; }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, 1); }
    void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        const auto found = sizes_.find(anchor);
        if (found == sizes_.end()) refuse(mark, "an alias stands within what it stands for");
        add(mark, YAML::NullAnchor, found->second);
    }
    void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  const std::string&) override {
        add(mark, anchor, 1);
    }
    void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value) override {
        begin(mark, anchor);
    }
    void OnSequenceEnd() override { end(); }
    void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value) override {
        begin(mark, anchor);
    }
    void OnMapEnd() override { end(); }

private:
    struct Open {
        YAML::anchor_t anchor;
        size_t before;  // nodes
    };

    [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const {
        fail(ErrorCode::input, component_, "{} line {}: {}", label_, mark.line + 1, what);
    }
    void add(const YAML::Mark& mark, YAML::anchor_t anchor, size_t nodes) {
        if (anchor != YAML::NullAnchor) sizes_[anchor] = nodes;
        nodes_ += nodes;
        if (nodes_ > kMostNodes)
            refuse(mark, fmt::format("the text has more than {} values, aliases written out", kMostNodes));
    }
    void begin(const YAML::Mark& mark, YAML::anchor_t anchor) {
        open_.push_back({anchor, nodes_});
        if (open_.size() > kDeepest)
            refuse(mark, fmt::format("nested too deep: more than {} levels", kDeepest));
        add(mark, YAML::NullAnchor, 1);
    }
    void end() {
        const auto [anchor, before] = open_.back();
        open_.pop_back();
        if (anchor != YAML::NullAnchor) sizes_[anchor] = nodes_ - before;
    }

    const char* component_;
    const std::string& label_;
    std::vector<Open> open_;
    std::map<YAML::anchor_t, size_t> sizes_;  // nodes below each anchor
    size_t nodes_ = 0;
};

}  // namespace

YAML::Node parse_yaml(const std::string& text, const char* component, const std::string& label) {
    if (text.size() > kMostBytes)
        fail(ErrorCode::input, component, "{}: got {} of YAML, expected at most {}", label,
             format_bytes(text.size()), format_bytes(kMostBytes));
    try {
        // LoadAll() would return empty documents without end after a line that is indented less than the
        // first.
        std::istringstream stream(text);
        YAML::Parser parser(stream);
        Watch watch(component, label);
        while (watch.documents < 2 && parser.HandleNextDocument(watch)) {
        }
        if (watch.documents > 1)
            fail(ErrorCode::input, component,
                 "{}: one YAML document expected, something follows the first - is a line indented less than "
                 "the first one?",
                 label);
        return YAML::Load(text);
    } catch (const YAML::Exception& error) {
        fail(ErrorCode::input, component, "{} line {}: not valid YAML: {}", label, error.mark.line + 1,
             error.msg);
    }
}

std::string YamlFile::at(const YAML::Node& node) const {
    return fmt::format("{} line {}", label_, node.Mark().line + 1);
}

std::string YamlFile::scalar(const YAML::Node& node, const std::string& key) const {
    if (!node.IsScalar()) fail(ErrorCode::input, component_, "{}: '{}' needs a single value", at(node), key);
    return node.Scalar();
}

std::vector<std::string> YamlFile::scalars(const YAML::Node& node, const std::string& key) const {
    if (!node.IsSequence()) fail(ErrorCode::input, component_, "{}: '{}' needs a list", at(node), key);
    std::vector<std::string> out;
    for (const auto& entry : node) out.push_back(scalar(entry, key));
    return out;
}

void YamlFile::check_map(const YAML::Node& node, const std::string& what) const {
    if (!node.IsMap()) fail(ErrorCode::input, component_, "{}: {} must be a mapping", at(node), what);
    std::set<std::string> seen;
    for (const auto& entry : node) {
        if (!entry.first.IsScalar())
            fail(ErrorCode::input, component_, "{}: a key must be a word", at(entry.first));
        if (!seen.insert(entry.first.Scalar()).second)
            fail(ErrorCode::input, component_, "{}: key '{}' is given twice", at(entry.first),
                 entry.first.Scalar());
    }
}

void YamlFile::read_map(const YAML::Node& node, const std::string& what, const Readers& readers) const {
    check_map(node, what);
    for (const auto& entry : node) {
        const std::string key = entry.first.Scalar();
        const auto found = readers.find(key);
        if (found == readers.end()) {
            std::vector<std::string> known;
            for (const auto& [name, reader] : readers) known.push_back(name);
            fail(ErrorCode::usage, component_, "{}: unknown key '{}'; {}", at(entry.first), key,
                 suggestion(key, known));
        }
        found->second(entry.second);
    }
}

}  // namespace refold
