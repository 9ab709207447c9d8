#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <sstream>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "refold/embedding.h"

namespace refold::cli::embed_verb {
namespace {

using Json = nlohmann::ordered_json;

const std::map<std::string, Pooling> kPoolings{
    {"mean", Pooling::mean}, {"cls", Pooling::first}, {"max", Pooling::max}, {"last", Pooling::last}};

struct Arguments {
    std::string model, text, file, pooling;
    std::vector<std::string> more;
    bool normalize = false, plain = false;
    EncoderOptions encoder;
    OutputOptions output;
    ReportOptions report;
};

// One text for each line.
std::vector<std::string> read_lines(const std::string& file) {
    std::istringstream in(read_text_file(file));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
        if (line.ends_with('\r')) line.pop_back();
        lines.push_back(std::move(line));
    }
    return lines;
}

std::vector<std::string> texts_of(const Arguments& a) {
    if (!a.file.empty()) return read_lines(a.file);
    std::vector<std::string> texts{a.text};
    texts.insert(texts.end(), a.more.begin(), a.more.end());
    for (size_t i = 0; i < texts.size(); ++i) require_utf8(texts[i], fmt::format("TEXT {}", i + 1).c_str());
    return texts;
}

// NumPy's format 1.0: a float32 array [rows, columns] in C order.
void write_npy(const OutputOptions& output, std::span<const float> values, size_t rows, size_t columns) {
    static_assert(std::endian::native == std::endian::little);
    constexpr size_t kAlignment = 64, kBeforeHeader = 10;
    std::string header =
        fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
    header.append(kAlignment - 1 - (kBeforeHeader + header.size()) % kAlignment, ' ').append("\n");
    const char size[] = {static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
    AtomicFile file(output.path, output.overwrite);
    file.write(std::string_view("\x93NUMPY\x01\x00", 8));
    file.write(std::string_view(size, 2));
    file.write(header);
    file.write(std::as_bytes(values));
    file.commit();
}

void print_vectors(std::span<const float> values, size_t columns) {
    for (size_t at = 0; at < values.size(); at += columns)
        print(fmt::format("{:.8g}\n", fmt::join(values.subspan(at, columns), " ")));
}

void report(const Arguments& a, std::span<const float> values, size_t rows, size_t columns) {
    if (!a.output.path.empty()) {
        write_npy(a.output, values, rows, columns);
        if (a.report.json) {
            print_json({{"output", a.output.path}, {"texts", rows}, {"dimensions", columns}});
        } else {
            print(fmt::format("{}: {} texts, {} dimensions\n", a.output.path, rows, columns));
        }
    } else if (a.report.json) {
        Json vectors = Json::array();
        for (size_t at = 0; at < values.size(); at += columns)
            vectors.push_back(std::vector<float>(values.begin() + static_cast<ptrdiff_t>(at),
                                                 values.begin() + static_cast<ptrdiff_t>(at + columns)));
        print_json({{"texts", rows}, {"dimensions", columns}, {"embeddings", vectors}});
    } else {
        print_vectors(values, columns);
    }
}

void embed(const Arguments& a) {
    const std::string path = resolve_model(a.model);
    if (!a.output.path.empty()) check_output(a.output, path);
    const std::vector<std::string> texts = texts_of(a);
    Encoder encoder(path, a.encoder);
    std::optional<bool> normalize;
    if (a.normalize || a.plain || !encoder.configures_embeddings()) normalize = a.normalize;
    const auto pooling = a.pooling.empty() ? std::nullopt : std::optional(kPoolings.at(a.pooling));
    const size_t columns = encoder.embedding_size(pooling);
    Progress progress("embed", texts.size(), "texts");
    size_t before = 0;
    const std::vector<float> values = encoder.embed(texts, pooling, normalize, [&](size_t done) {
        progress.advance(done - std::exchange(before, done));
    });
    progress.finish();
    report(a, values, texts.size(), columns);
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    add_model(app, a->model)->required();
    // Of a list of texts CLI11 would split "[a, b]", so the texts after the first are what it does not know.
    auto* text = app.add_option("TEXT", a->text, "Text to embed; more texts may follow");
    app.allow_extras();
    auto* file = app.add_option("-f,--file", a->file, "Embed every line of a file instead")
                     ->type_name("FILE")
                     ->excludes(text);
    app.add_option(
           "--pooling", a->pooling,
           "What makes one vector of those of the tokens: mean, cls (the first token's), max (by element) or "
           "last "
           "(the last token's) [as the model's sentence-transformers folder configures it, else mean]")
        ->type_name("POOLING")
        ->check(CLI::IsMember(kPoolings));
    auto* normalize =
        app.add_flag("--normalize", a->normalize,
                     "Scale vectors to length 1 [as the model's folder configures it, else not]");
    app.add_flag("--no-normalize", a->plain, "Do not")->excludes(normalize);
    add_output(app, a->output, "Write a NumPy file (.npy, float32 [texts, dimensions]) instead of printing");
    add_threads(app, a->encoder.threads);
    app.add_option("--context", a->encoder.context, "Most tokens of a text [the model's own]")
        ->check(CLI::PositiveNumber);
    app.add_flag("--f32", a->encoder.f32, "float32 weights and activations");
    add_report_options(app, a->report);
    add_examples(app, {"refold embed minilm-l6 \"A cat sat on the mat.\" \"A kitten rested.\" --json",
                       "refold embed minilm-l6 --file lines.txt -o vectors.npy",
                       "refold embed ./bert-base-uncased --pooling cls --normalize \"A text\""});
    return [a, &app, text, file] {
        a->more = app.remaining();
        for (const std::string& extra : a->more) {
            if (file->count() > 0 || (extra.size() > 1 && extra.front() == '-'))
                fail(ErrorCode::usage, "embed",
                     "the argument '{}' was not expected - see `refold embed --help`", extra);
        }
        if (text->count() + file->count() == 0) fail(ErrorCode::usage, "embed", "give TEXT or --file");
        embed(*a);
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"embed", VerbGroup::running, "Turn texts into vectors with an encoder", declare};

}  // namespace refold::cli::embed_verb
