// Splits texts into documents, for measures per document, as lm-evaluation-harness 0.4.13 does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

struct Document {
    std::string text;   // the scored text
    int64_t words = 0;  // of the original: runs of white space + 1
    int64_t bytes = 0;  // of the original, in UTF-8
    std::string hash;   // lm-evaluation-harness's "doc_hash"
};

enum class DocumentForm { jsonl, wikitext, plain };
const char* document_form_name(DocumentForm form);

struct Documents {
    DocumentForm form = DocumentForm::plain;
    std::vector<Document> documents;
};

// A text whose first character is "{" is JSONL: every line that is not blank is an object with a string
// "text", or "page", a page of WikiText, which is scored after wikitext_detokenized(). A text with headings
// of the form " = Title = " is WikiText, and its pages are the documents. Any other text is one document.
// `name` is the file, for errors. Throws Error(input) naming a line that is no such object.
Documents split_documents(const std::string& text, const std::string& name);

// Turns WikiText's tokenized form into running text, by the replacements of lm-evaluation-harness's task
// "wikitext".
std::string wikitext_detokenized(std::string text);

// Number of pieces between runs of white space (Unicode's, as Python's \s), including empty ones at the ends.
int64_t count_words(std::string_view text);

// The text of the GPTQ scripts: WikiText's file as the rows of the hub's data set "wikitext" (blank lines are
// empty rows, others keep their newline), joined by blank lines.
std::string wikitext_rows_joined(std::string_view text);

}  // namespace refold
