// Which files of a folder refold has written: a list in the folder, ".refold-files", of their SHA-256 and
// names.
//
// A name that refold would write does not tell whose file it is, and neither does a list of names: files are
// edited, trained further and replaced. So a file is refold's as long as its bytes are those that refold
// wrote. The list appears with the files, in one step, and is of names within the folder: a killed run, a
// renamed, moved or copied folder do not part the two. Versions that wrote no list may have been used with
// other programs since, so their files count as somebody else's. `sha256sum --check .refold-files` reads the
// list.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace refold {

constexpr const char* kWrittenFiles = ".refold-files";

class WrittenFiles {
public:
    WrittenFiles() = default;
    // Reads the list of a folder; empty if there is none.
    explicit WrittenFiles(const std::string& folder);

    // The file is listed, and is as refold wrote it. `name` is relative to the folder.
    bool contains(const std::string& name) const;

private:
    std::string folder_;
    std::map<std::string, std::string> hashes_;
};

// Writes the list of these files.
void write_list_of_files(const std::string& folder, const std::vector<std::string>& names);

}  // namespace refold
