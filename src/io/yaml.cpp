#include "io/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <set>
#include <sstream>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

class DocumentCounter : public YAML::EventHandler {
public:
    int documents = 0;

    void OnDocumentStart(const YAML::Mark&) override { ++documents; }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
    void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
    void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
    void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                         YAML::EmitterStyle::value) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                    YAML::EmitterStyle::value) override {}
    void OnMapEnd() override {}
};

}  // namespace

YAML::Node parse_yaml(const std::string& text, const char* component, const std::string& label) {
    try {
        // LoadAll() would return empty documents without end after a line that is indented less than the
        // first.
        std::istringstream stream(text);
        YAML::Parser parser(stream);
        DocumentCounter counter;
        while (counter.documents < 2 && parser.HandleNextDocument(counter)) {
        }
        if (counter.documents > 1)
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
