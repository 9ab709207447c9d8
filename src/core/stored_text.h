// Texts of models, adapters and downloads. Nobody may have looked at what such a folder holds, so opening one
// of its files never waits, and memory is bounded. Texts that the user names may come through a pipe:
// read_text_file() reads those.
#pragma once

#include <string>

namespace refold {

// The whole file as text. Throws as read_text_file() does, and Error(io) when it is not a regular file (a
// FIFO, a device, a folder), Error(input) when it is larger than 1 GiB.
std::string read_stored_text(const std::string& path);

// Throws Error(input) when the text of the file `path` is empty or not UTF-8, naming the byte offset.
void check_text(const std::string& text, const std::string& path);

}  // namespace refold
