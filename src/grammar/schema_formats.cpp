#include "grammar/schema_formats.h"

#include <functional>
#include <initializer_list>
#include <map>

namespace refold {
namespace {

std::string one_of(std::initializer_list<std::string_view> patterns) {
    std::string out;
    for (const std::string_view pattern : patterns) out.append(out.empty() ? "(" : "|").append(pattern);
    return out + ")";
}

// RFC 3339, 5.6; years from 0001, which all calendars have.
std::string date_pattern() {
    const std::string month_day = one_of({"(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])",
                                          "(0[469]|11)-(0[1-9]|[12][0-9]|30)", "02-(0[1-9]|1[0-9]|2[0-8])"});
    const std::string year = "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})";
    const std::string fourth = "(0[48]|[2468][048]|[13579][26])";  // 04, 08, ..., 96
    return one_of({year + "-" + month_day, "([0-9]{2}" + fourth + "|" + fourth + "00)-02-29"});
}

std::string time_pattern() {
    const std::string hour_minute = "([01][0-9]|2[0-3]):[0-5][0-9]";
    return hour_minute + ":[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]" + hour_minute + ")";
}

// RFC 2673, 3.2, and RFC 4291, 2.2.
const char* const kOctet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";

std::string ipv4_pattern() { return std::string("(") + kOctet + "\\.){3}" + kOctet; }

std::string ipv6_pattern() {
    const std::string group = "[0-9a-fA-F]{1,4}", before = "(" + group + ":)", after = "(:" + group + ")";
    std::string out = "(" + before + "{7}" + group;
    out += "|" + before + "{6}" + ipv4_pattern();
    for (int n = 1; n <= 7; ++n) {  // groups before "::"; at least one is left out
        out += "|" + before + "{" + std::to_string(n) + "}";
        out += n == 7 ? ":" : "(:|" + after + "{1," + std::to_string(7 - n) + "})";
    }
    out += "|:(:|" + after + "{1,7})";
    for (int n = 0; n <= 4; ++n)  // groups between "::" and the last four bytes
        out += "|::" + (n == 0 ? "" : before + "{" + std::to_string(n) + "}") + ipv4_pattern();
    return out + "|" + before + "{1,4}:" + ipv4_pattern() + ")";
}

// RFC 1123, 2.1: labels of up to 63 characters that neither begin nor end with "-", 253 characters in all.
std::string host_pattern(const std::string& letters, int most_labels) {
    const std::string label = "([" + letters + "]-?){0,23}[" + letters + "]";
    return label + "(\\." + label + "){0," + std::to_string(most_labels - 1) + "}";
}

// RFC 5321, 4.1.2: up to 64 characters before the "@", without quotes, and 254 in all.
std::string email_pattern() {
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]";
    return "(" + atom + "\\.?){0,31}" + atom + "@" + host_pattern("a-zA-Z0-9", 3);
}

// RFC 6901, in characters that JSON does not escape.
const char* const kJsonPointer = "(/([ !#-.0-\\[\\]-}]|~[01])*)*";

}  // namespace

std::string format_pattern(std::string_view format) {
    static const std::map<std::string, std::string, std::less<>> patterns = {
        {"date", date_pattern()},
        {"time", time_pattern()},
        {"date-time", date_pattern() + "T" + time_pattern()},
        {"ipv4", ipv4_pattern()},
        {"ipv6", ipv6_pattern()},
        {"hostname", host_pattern("a-z0-9", 5)},
        {"email", email_pattern()},
        {"json-pointer", kJsonPointer},
        {"relative-json-pointer", "(0|[1-9][0-9]*)(#|" + std::string(kJsonPointer) + ")"}};
    const auto found = patterns.find(format);
    return found == patterns.end() ? "" : "^(" + found->second + ")$";
}

}  // namespace refold
