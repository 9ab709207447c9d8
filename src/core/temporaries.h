// Temporary files and folders beside an output, which get its name once they are complete.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace refold {

// "OUTPUT.partial-" and 16 random hexadecimal digits: nobody can put a link of that name there beforehand.
std::string temporary_name(const std::string& output);
// What all these names of an output begin with.
std::string temporary_beginning(const std::string& output);

// Locks the file or folder that this process has just made, so that remove_left_behind() of other processes
// leaves it. Returns false when one of them has taken it before the lock: make another one. File systems
// without locks are none of its concern: there nothing is removed either.
bool hold_temporary(int descriptor, const std::string& path);

// Removes what killed processes have left of the output: files and folders of such names that are this user's
// and that no process has locked. Follows no links.
void remove_left_behind(const std::string& output);

// Removes the files of a folder, and of those in it, that are `ours`, by their path within it, and what
// killed processes have left of them; then the folders that are empty. Everything else stays. Follows no
// links, except that `folder` may be one; ignores errors.
void remove_files(const std::string& folder,
                  const std::function<bool(const std::filesystem::path& name)>& ours);

// Removes a folder with everything in it, also where folders in it are read-only. Follows no links; ignores
// errors.
void remove_tree(const std::string& folder);

}  // namespace refold
