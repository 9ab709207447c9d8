#include "cli/compression.h"
#include "cli/help.h"
#include "cli/verb.h"
#include "core/error.h"

namespace refold::cli::train_verb {
namespace {

Action declare(CLI::App& app) {
    auto a = std::make_shared<CompressionArguments>();
    const CompressionOptions options = add_compression_options(app, *a);
    options.settings->description("Option of the method train (see refold methods train); may be repeated")
        ->excludes(options.recipe);
    add_examples(app,
                 {"refold train smollm2-135m-instruct -o tuned.gguf --data wiki.train.txt --set steps=500",
                  "refold train looped.gguf -o better.gguf --data chats.jsonl --set objective=distill "
                  "--set teacher=dense.gguf",
                  "refold train smollm2-135m-instruct -o shared.gguf --recipe recipes/postshare_30.yaml "
                  "--data wiki.train.txt",
                  "torchrun --nproc-per-node 2 --no-python refold train MODEL -o OUT.gguf --data FILE",
                  "refold train MODEL --dry-run --set weights=bf16"});
    return [a, options] {
        if (options.output->count() == 0 && !a->dry_run)
            fail(ErrorCode::usage, "train", "give --output, or --dry-run");
        if (options.recipe->count() == 0) a->method = "train";
        run_compression(*a);
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"train", VerbGroup::compression, "Train a model on text, or apply a recipe that does",
                   declare};

}  // namespace refold::cli::train_verb
