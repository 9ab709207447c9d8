// Numbers that have been measured, in a file, so that an interrupted run goes on.
#pragma once

#include <map>
#include <string>

namespace refold {

class KnownNumbers {
public:
    // Reads the file (JSON lines) if there is one; makes its folder. Throws Error(io), Error(input).
    explicit KnownNumbers(std::string path);
    // Null when it is not known. A number may be NaN. `of` says what the number is of.
    const double* find(const std::string& of) const;
    // Writes the file with this number, complete or not at all.
    void keep(const std::string& of, double number);

private:
    std::string path_;
    std::map<std::string, double> known_;
};

}  // namespace refold
