// A server over real connections, with a tiny encoder.
#pragma once

#include <filesystem>

#include "core/temp_folder.h"
#include "model/load.h"
#include "serve/http_client.h"
#include "serve/one_model.h"
#include "serve/server.h"

namespace refold {

// The checkpoint hf/NAME of the fixtures with the tokenizer tokenizers/NAME.
class EncoderFolder {
public:
    EncoderFolder(const std::string& checkpoint, const std::string& tokenizer) {
        const std::string fixtures = REFOLD_FIXTURES;
        for (const char* file : {"config.json", "model.safetensors"})
            std::filesystem::copy_file(fixtures + "/hf/" + checkpoint + "/" + file, folder_ / file);
        for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                 "vocab.json", "merges.txt"})
            if (const std::string from = fixtures + "/tokenizers/" + tokenizer + "/" + file;
                std::filesystem::exists(from))
                std::filesystem::copy_file(from, folder_ / file);
    }
    std::string path() const { return folder_ / ""; }

private:
    TempFolder folder_;
};

class RunningEncoder {
public:
    explicit RunningEncoder(const std::string& checkpoint = "bert_encoder",
                            const std::string& its_tokenizer = "wordpiece_bert_cased",
                            ServerOptions options = {}, int64_t most_requests = 8)
        : folder(checkpoint, its_tokenizer),
          tokenizer(folder.path()),
          encoder(load_model(folder.path()), tokenizer, {.threads = 1, .f32 = true}),
          queue(encoder, most_requests),
          models_(std::make_shared<ServedModel>(nullptr, tokenizer, info(), &queue)) {
        options.port = 0;
        server.emplace(models_, options);
    }

    HttpClient client() const { return HttpClient(server->port()); }
    HttpReply get(const std::string& path) const { return client().get(path); }
    HttpReply post(const std::string& path, nlohmann::json body) const {
        body.emplace("model", "org/encoder");
        return client().post(path, body.dump());
    }

    const EncoderFolder folder;
    const Tokenizer tokenizer;
    TextEncoder encoder;
    EncoderQueue queue;

private:
    ModelInfo info() const {
        ModelInfo out;
        out.name = "org/encoder";
        out.context = encoder.capabilities().context;
        out.n_vocab = encoder.capabilities().n_vocab;
        return out;
    }

    OneModel models_;

public:
    std::optional<Server> server;
};

}  // namespace refold
