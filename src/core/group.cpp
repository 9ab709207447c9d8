#include "core/group.h"

namespace refold {
namespace {

class OneProcess : public Group {
public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    std::vector<std::string> gather(const std::string& own) override { return {own}; }
    void sum(std::span<double>) override {}
};

OneProcess one_process;
std::unique_ptr<Group> several;

}  // namespace

Group& group() { return several ? *several : one_process; }
void set_group(std::unique_ptr<Group> group) { several = std::move(group); }

}  // namespace refold
