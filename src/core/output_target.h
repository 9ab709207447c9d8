// What may have the name of an output file.
#pragma once

#include <string>

namespace refold {

// Outputs replace what has their name, by a rename. So this throws
// - Error(io) for a folder, or a link to one;
// - Error(usage) for a device, FIFO or socket, or a link to one: it would become a regular file, and an
// output
//   that was written into it would not be complete or absent;
// - Error(usage) for a file or a link when `overwrite` is false, also for a link that leads nowhere.
// With `overwrite` a link is replaced, and the file that it leads to stays; so do other hard links to a file.
void check_output_target(const std::string& path, bool overwrite);

// Renames a complete file to the output. Throws as above, also for what has got the output's name meanwhile.
void rename_to_output(const std::string& temporary, const std::string& path, bool overwrite);

}  // namespace refold
