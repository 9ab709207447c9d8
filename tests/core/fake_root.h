// Files of Linux below a folder of their own.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "core/temp_folder.h"

namespace refold {

class FakeRoot {
public:
    void write(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories((root() / path).parent_path());
        std::ofstream(root() / path) << text << "\n";
    }
    std::filesystem::path root() const { return folder_ / ""; }

private:
    TempFolder folder_;
};

}  // namespace refold
