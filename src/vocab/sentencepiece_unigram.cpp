#include <cctype>
#include <map>

#include "core/error.h"
#include "vocab/base64.h"
#include "vocab/sentencepiece.h"

namespace refold {
namespace {

using Names = std::vector<std::string>;

const Names kFairseqHead{"<s>", "<pad>", "</s>", "<unk>"};
const Names kMBartLanguages{"ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN",
                            "hi_IN", "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP",
                            "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"};
const Names kMBart50Languages{"af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID",
                              "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN", "mr_IN", "pl_PL",
                              "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH",
                              "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES", "sl_SI"};

class Reader {
public:
    Reader(const SentencePieceModel& model, const TokenizerSettings& settings, int64_t vocab_size)
        : model_(model),
          config_(settings.config, "'" + (settings.folder / "tokenizer_config.json").string() + "':"),
          kind_(settings.tokenizer_class()),
          vocab_size_(vocab_size) {
        out_.source = model.source;
        out_.model = "t5";
    }

    Vocabulary read() {
        if (model_.suffix || !model_.escapes_spaces) {
            fail(ErrorCode::unsupported, "tokenizer", "'{}': a SentencePiece model {} is not known",
                 model_.source,
                 model_.suffix ? "with treat_whitespace_as_suffix" : "without escape_whitespaces");
        }
        options_.char_map = base64(model_.char_map);
        const bool legacy = config_.boolean("legacy", true);
        const auto prefix = config_.json().find("add_prefix_space");  // null counts as false
        const bool prepends = prefix == config_.json().end() || *prefix == true;
        options_.prepend_scheme = !prepends ? "never" : legacy ? "always" : "first";
        static const std::map<std::string, void (Reader::*)()> by_class{
            {"", &Reader::plain},
            {"PreTrainedTokenizer", &Reader::plain},
            {"T5Tokenizer", &Reader::t5},
            {"MT5Tokenizer", &Reader::t5},
            {"XLMRobertaTokenizer", &Reader::xlm_roberta},
            {"CamembertTokenizer", &Reader::camembert},
            {"MBartTokenizer", &Reader::mbart},
            {"MBart50Tokenizer", &Reader::mbart50},
            {"AlbertTokenizer", &Reader::albert},
            {"LlamaTokenizer", &Reader::llama},
        };
        const auto known = by_class.find(kind_);
        if (known == by_class.end()) {
            fail(ErrorCode::unsupported, "tokenizer",
                 "'{}': how tokenizer_class '{}' uses a unigram model is not known - add the tokenizer.json "
                 "of the "
                 "model",
                 model_.source, kind_);
        }
        (this->*known->second)();
        return std::move(out_);
    }

private:
    void add(const std::string& token, double score) {
        out_.set(static_cast<int64_t>(out_.scores.size()), token, vocab_size_);
        out_.scores.push_back(score);
    }
    void add_all(const Names& tokens) {
        for (const auto& token : tokens) add(token, 0);
    }
    void add_pieces(size_t first, double (*penalty)(const std::string&) = nullptr) {
        for (size_t i = first; i < model_.pieces.size(); ++i) {
            const auto& [text, score, type] = model_.pieces[i];
            add(text, double{score} + (penalty == nullptr ? 0 : penalty(text)));
        }
    }

    // To be called when all tokens are there.
    void finish(int64_t unknown) {
        if (unknown < 0 || static_cast<size_t>(unknown) >= out_.scores.size()) {
            fail(ErrorCode::input, "tokenizer",
                 "'{}': the unknown token is {}, expected one of {} - fetch the file again", model_.source,
                 unknown, out_.scores.size());
        }
        options_.unknown = static_cast<int32_t>(unknown);
        options_.size = out_.scores.size();
        out_.skeleton = unigram_skeleton(options_);
        for (const auto& [text, score, type] : model_.pieces) {
            if (type == kControlToken || type == kUserDefinedToken) mark(text, type == kControlToken);
        }
    }
    SpecialToken token(const std::string& content) const {
        const auto id = out_.find(content);
        if (!id) {
            fail(ErrorCode::input, "tokenizer", "'{}' has no token '{}' - is this the model's tokenizer?",
                 model_.source, content);
        }
        return {*id, content};
    }
    void mark(const std::string& content, bool special, bool takes_space = false) {
        const auto id = out_.find(content);
        if (!id) return;  // a class may spell it differently
        AddedToken added{*id, content};
        added.special = special;
        added.normalized = takes_space && content == "<mask>";  // as the classes of fairseq's models have it
        added.lstrip = takes_space;
        Json& list = out_.skeleton["added_tokens"];
        for (Json& other : list) {
            if (other["id"] == *id) return void(other = to_json(added));
        }
        list.push_back(to_json(added));
    }
    // What the class calls "bos" and so on where no file does.
    void special(const std::map<std::string, std::string>& names) {
        for (const auto& [name, content] : names) {
            if (config_.find(name + "_token") || !out_.find(content)) continue;
            out_.specials.emplace(name, content);
            mark(content, true, name == "mask");
        }
    }

    void plain() {
        add_pieces(0);
        finish(model_.unknown_id);
    }

    void t5() {
        add_pieces(0);
        const auto field = config_.find("extra_ids");
        const int64_t extra = field ? field->integer(0, vocab_size_) : 100;
        for (int64_t i = extra; i-- > 0;) add(extra_id(i), 0);
        finish(model_.unknown_id);
        const SpecialToken end = token("</s>");
        out_.skeleton["post_processor"] = template_processor({}, {end}, false);
        special({{"eos", "</s>"}, {"unk", "<unk>"}, {"pad", "<pad>"}});
        for (int64_t i = 0; i < extra; ++i) mark(extra_id(i), true);
    }
    static std::string extra_id(int64_t i) { return "<extra_id_" + std::to_string(i) + ">"; }

    void fairseq_specials() {
        special({{"bos", "<s>"},
                 {"eos", "</s>"},
                 {"sep", "</s>"},
                 {"cls", "<s>"},
                 {"unk", "<unk>"},
                 {"pad", "<pad>"},
                 {"mask", "<mask>"}});
    }

    void xlm_roberta() {
        add_all(kFairseqHead);
        add_pieces(3);
        add("<mask>", 0);
        finish(3);
        out_.skeleton["post_processor"] = bert_processor("RobertaProcessing", token("<s>"), token("</s>"));
        fairseq_specials();
    }

    void camembert() {
        add_all({"<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>"});
        add("<unk>NOTUSED", -100);
        add_pieces(1);
        add("<mask>", 0);
        finish(3);
        out_.skeleton["post_processor"] = bert_processor("RobertaProcessing", token("<s>"), token("</s>"));
        fairseq_specials();
        for (const auto* unused : {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"}) mark(unused, true);
    }

    // Both mark the language of a text; apply_settings() sets the special tokens around it.
    void mbart() { multilingual({}); }
    void mbart50() { multilingual(kMBart50Languages); }
    void multilingual(const Names& more) {
        add_all(kFairseqHead);
        add_pieces(3);
        add_all(kMBartLanguages);
        add_all(more);
        add("<mask>", 0);
        finish(3);
        fairseq_specials();
        for (const Names* languages : {&kMBartLanguages, &more}) {
            for (const auto& language : *languages) mark(language, true);
        }
    }

    // Pieces that end in a comma after a digit are not to be used.
    static double comma_penalty(const std::string& text) {
        const size_t n = text.size();
        const bool after_digit =
            n >= 2 && text[n - 1] == ',' && std::isdigit(static_cast<unsigned char>(text[n - 2]));
        return after_digit ? -100 : 0;
    }

    void albert() {
        add_pieces(0, comma_penalty);
        finish(model_.unknown_id);
        Json steps = Json::array({replace_text("``", "\""), replace_text("''", "\"")});
        if (!config_.boolean("keep_accents", false)) {
            steps.push_back({{"type", "NFKD"}});
            steps.push_back({{"type", "StripAccents"}});
        }
        if (config_.boolean("do_lower_case", true)) steps.push_back({{"type", "Lowercase"}});
        if (!options_.char_map.empty())
            steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", options_.char_map}});
        steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
        out_.skeleton["normalizer"]["normalizers"] = steps;
        out_.skeleton["post_processor"] = bert_processor("BertProcessing", token("[CLS]"), token("[SEP]"));
        special({{"bos", "[CLS]"},
                 {"eos", "[SEP]"},
                 {"sep", "[SEP]"},
                 {"cls", "[CLS]"},
                 {"unk", "<unk>"},
                 {"pad", "<pad>"},
                 {"mask", "[MASK]"}});
    }
    static Json replace_text(const char* from, const char* to) {
        return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
    }

    void llama() {
        for (size_t i = 0; i < model_.pieces.size(); ++i)
            add(model_.pieces[i].text, i < 3 ? 0 : double{model_.pieces[i].score});
        finish(0);
        const Json bpe = sentencepiece_skeleton(options_.prepend_scheme != "never", true, model_.unknown);
        for (const char* field : {"normalizer", "pre_tokenizer", "decoder"})
            out_.skeleton[field] = bpe[field];
        if (options_.prepend_scheme == "first") {
            out_.skeleton["normalizer"] = nullptr;
            out_.skeleton["pre_tokenizer"] = {{"type", "Metaspace"},
                                              {"replacement", "\u2581"},
                                              {"prepend_scheme", "first"},
                                              {"split", false}};
        }
        out_.skeleton["model"] = unigram_model(options_.unknown, true, options_.size);
        special({{"bos", "<s>"}, {"eos", "</s>"}, {"unk", "<unk>"}});
    }

    const SentencePieceModel& model_;
    const JsonView config_;
    const std::string kind_;
    const int64_t vocab_size_;
    UnigramSkeleton options_;
    Vocabulary out_;
};

}  // namespace

Vocabulary unigram_vocabulary(const SentencePieceModel& model, const TokenizerSettings& settings,
                              int64_t vocab_size) {
    return Reader(model, settings, vocab_size).read();
}

}  // namespace refold
