// Output folders that appear complete or not at all, in which everything stays that refold has not written.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/written_files.h"

namespace refold {

// What becomes of a file in an existing folder that refold has not written, or that was changed since.
enum class OthersFile {
    stays,     // and the new folder must not have a file of this name, unless with the same bytes
    refused,   // the new folder would not be what its writer means if such a file were in it
    replaced,  // by one of the same name; stays if there is none
    removed,
};

struct FolderRules {
    bool overwrite = false;
    // The fate of a file of somebody else, by its name within the folder. Not given: it stays.
    std::function<OthersFile(const std::string& name)> others = {};
};

// Write files into path(), a folder beside the final one. commit() adds what is to stay of an existing
// folder, as hard links - the same files, with their modes and times - and a list of the files that refold
// wrote (written_files.h). Then it exchanges the two folders in one step, so a killed run leaves the old
// state or the new one. Folders within are made again with the same modes, owners and attributes. Without
// commit() the destructor removes path().
class OutputFolder {
public:
    // `folder` may be a link to a folder, which stays. Throws Error(io) when it cannot be written, and
    // Error(usage) when it
    // - is no folder,
    // - is not empty and `overwrite` is false,
    // - has a file that the rules refuse,
    // - is the current folder or around it, which would be a deleted folder then.
    OutputFolder(const std::string& folder, FolderRules rules);
    ~OutputFolder();
    OutputFolder(const OutputFolder&) = delete;
    OutputFolder& operator=(const OutputFolder&) = delete;

    const std::string& path() const { return temporary_; }
    // Throws Error(usage) naming files that would be replaced and may not, Error(io).
    void commit();

private:
    struct Old;
    void exchange(const Old& old);
    void abandon();

    std::string folder_, temporary_;
    FolderRules rules_;
    int descriptor_ = -1;
    bool committed_ = false;
};

}  // namespace refold
