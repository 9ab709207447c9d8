// Reads the published formats of data sets into JSON objects, each with its line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

struct Record {
    nlohmann::ordered_json fields;  // an object
    size_t line = 0;                // in the file, from 1; in a JSON document: index of the entry, from 1
};

enum class RecordForm {
    jsonl,           // a JSON object per line
    json,            // one JSON document with a list of objects, or an object of objects
    csv,             // comma separated, quotes doubled (RFC 4180)
    tsv,             // tab separated, without quotes
    hellaswag_text,  // the six lines per item of llama.cpp's text form: "activity: context", label, endings
};

struct RecordOptions {
    RecordForm form = RecordForm::jsonl;
    std::vector<std::string>
        columns;        // names for a table without a header line; empty: the first line has them
    std::string items;  // json: the member that holds the items, "a.b"; empty: the document itself
    std::string key;    // json: field for the member name, in an object of objects
    std::vector<std::string>
        unfold;  // fields that are lists of equal length: one record per entry, with the entry as value
};

// `label` names the file in messages. Throws Error(input) with file and line for malformed records, for text
// that is not UTF-8, and when there are no records.
std::vector<Record> parse_records(std::string_view text, const RecordOptions& options,
                                  const std::string& label);

// "jsonl" etc.; throws Error(usage) with the known forms for any other word.
RecordForm parse_record_form(const std::string& word, const std::string& where);

}  // namespace refold
