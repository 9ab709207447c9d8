#include "eval/documents.h"

#include <nlohmann/json.hpp>
#include <span>

#include "core/error.h"
#include "core/json_lines.h"
#include "core/sha256.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// Bytes of the white space character (UTF-8, as Python's str.isspace()) that begins at text[at]; 0 if there
// is none.
size_t space_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
    const int a = byte(at), b = byte(at + 1), c = byte(at + 2);
    if (at >= text.size()) return 0;
    if ((a >= 0x09 && a <= 0x0D) || (a >= 0x1C && a <= 0x20)) return 1;
    if (a == 0xC2 && (b == 0x85 || b == 0xA0)) return 2;
    if (a == 0xE1 && b == 0x9A && c == 0x80) return 3;
    if (a == 0xE2 && b == 0x80 && ((c >= 0x80 && c <= 0x8A) || c == 0xA8 || c == 0xA9 || c == 0xAF)) return 3;
    if (a == 0xE2 && b == 0x81 && c == 0x9F) return 3;
    if (a == 0xE3 && b == 0x80 && c == 0x80) return 3;
    return 0;
}

std::string_view stripped(std::string_view text) {
    while (const size_t space = space_at(text, 0)) text.remove_prefix(space);
    for (size_t size = 1; size <= 3 && size <= text.size(); ++size) {
        if (space_at(text, text.size() - size) != size) continue;
        text.remove_suffix(size);
        size = 0;
    }
    return text;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    std::string out;
    size_t done = 0;
    for (size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size()) {
        out.append(text, done, at - done).append(to);
    }
    text = out.append(text, done);
}

// Strips white space after each `open` and before the next `close`, pair by pair.
void strip_inside(std::string& text, char open, char close) {
    std::string out;
    size_t done = 0;
    for (;;) {
        const size_t begin = text.find(open, done);
        const size_t end = begin == std::string::npos ? begin : text.find(close, begin + 1);
        if (end == std::string::npos) break;
        out.append(text, done, begin + 1 - done);
        out += stripped(std::string_view(text).substr(begin + 1, end - begin - 1));
        out += close;
        done = end + 1;
    }
    text = out.append(text, done);
}

// "/' 7/" becomes "/'[0-9]/": the task's expression includes slashes, and its replacement is literal.
void replace_quoted_digit(std::string& text) {
    for (size_t at = 0; (at = text.find("/' ", at)) != std::string::npos; ++at) {
        if (at + 4 >= text.size() || text[at + 3] < '0' || text[at + 3] > '9' || text[at + 4] != '/')
            continue;
        text.replace(at, 5, "/'[0-9]/");
        at += 7;
    }
}

bool is_title(std::string_view line) {
    std::string text(line);
    replace_all(text, "= = =", "===");
    replace_all(text, "= =", "==");
    const std::string_view title = stripped(text);
    return title.starts_with("= ") && title.ends_with(" =");
}

Document document(const Json& object, const std::string& original, std::string text) {
    const std::string dump = object.dump(2, ' ', false, Json::error_handler_t::replace);
    return {std::move(text), count_words(original), static_cast<int64_t>(original.size()),
            sha256_hex(std::as_bytes(std::span(dump)))};
}

Document page_document(const std::string& page) {
    return document(Json{{"page", page}}, page, wikitext_detokenized(page));
}

Document parse_line(std::string_view line, size_t number, const std::string& name) {
    const auto bad = [&](const std::string& what) {
        fail(ErrorCode::input, "documents",
             "'{}', line {}: {}; expected an object with a string \"text\" or \"page\"", name, number, what);
    };
    const Json object = parse_json_line(line, "documents", name, number);
    for (const char* key : {"page", "text"}) {
        const auto found = object.find(key);
        if (found == object.end()) continue;
        if (!found->is_string()) bad(fmt::format("\"{}\" is not a string", key));
        const std::string original = *found;
        return document(object, original,
                        std::string_view(key) == "page" ? wikitext_detokenized(original) : original);
    }
    bad("no \"text\" and no \"page\"");
    return {};
}

}  // namespace

const char* document_form_name(DocumentForm form) {
    switch (form) {
        case DocumentForm::jsonl: return "jsonl";
        case DocumentForm::wikitext: return "wikitext";
        case DocumentForm::plain: break;
    }
    return "plain";
}

Documents split_documents(const std::string& text, const std::string& name) {
    Documents out;
    if (stripped(text).starts_with("{")) {
        out.form = DocumentForm::jsonl;
        for_lines(text, [&](std::string_view line, size_t number) {
            if (!stripped(line).empty()) out.documents.push_back(parse_line(line, number, name));
        });
        return out;
    }
    std::string page;
    bool first = true;
    const auto finish = [&] {
        if (!stripped(page).empty()) out.documents.push_back(page_document(page));
        page.clear();
        first = true;
    };
    for_lines(text, [&](std::string_view line, size_t) {
        if (is_title(line)) {
            finish();
            out.form = DocumentForm::wikitext;
        }
        if (!first) page += '\n';
        page += line;
        first = false;
    });
    finish();
    if (out.form == DocumentForm::plain) out.documents = {document(Json{{"text", text}}, text, text)};
    return out;
}

std::string wikitext_detokenized(std::string text) {
    replace_all(text, "s '", "s'");
    replace_quoted_digit(text);
    for (const auto& [from, to] : {std::pair{" @-@ ", "-"},
                                   {" @,@ ", ","},
                                   {" @.@ ", "."},
                                   {" : ", ": "},
                                   {" ; ", "; "},
                                   {" . ", ". "},
                                   {" ! ", "! "},
                                   {" ? ", "? "},
                                   {" , ", ", "}})
        replace_all(text, from, to);
    strip_inside(text, '(', ')');
    strip_inside(text, '[', ']');
    strip_inside(text, '{', '}');
    strip_inside(text, '"', '"');
    strip_inside(text, '\'', '\'');
    for (const auto& [from, to] : {std::pair{"= = = =", "===="},
                                   {"= = =", "==="},
                                   {"= =", "=="},
                                   {" \xC2\xB0 ", "\xC2\xB0"},
                                   {" \n", "\n"},
                                   {"\n ", "\n"},
                                   {" N ", " 1 "},
                                   {" 's", "'s"}})
        replace_all(text, from, to);
    return text;
}

int64_t count_words(std::string_view text) {
    int64_t words = 1;
    bool inside = false;  // of a run of white space
    for (size_t at = 0; at < text.size();) {
        const size_t space = space_at(text, at);
        if (space != 0 && !inside) ++words;
        inside = space != 0;
        at += std::max<size_t>(1, space);
    }
    return words;
}

std::string wikitext_rows_joined(std::string_view text) {
    std::string out;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        const std::string_view row =
            text.substr(begin, end == std::string_view::npos ? text.size() - begin : end + 1 - begin);
        if (begin > 0) out += "\n\n";
        if (!stripped(row).empty()) out += row;
        begin += row.size();
    }
    return out;
}

}  // namespace refold
