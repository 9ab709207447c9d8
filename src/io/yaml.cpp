#include "io/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>

#include "core/error.h"

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

}  // namespace refold
