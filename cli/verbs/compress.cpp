#include "cli/compression.h"
#include "cli/help.h"
#include "cli/verb.h"
#include "core/error.h"

namespace refold::cli::compress_verb {
namespace {

Action declare(CLI::App& app) {
    auto a = std::make_shared<CompressionArguments>();
    const CompressionOptions options = add_compression_options(app, *a);
    auto* method = app.add_option("-m,--method", a->method, "Apply this one method (see refold methods)")
                       ->type_name("NAME")
                       ->excludes(options.recipe);
    options.settings->needs(method);
    add_examples(app,
                 {"refold compress smollm2-135m-instruct -o small.gguf --method direct_share --set ratio=0.3",
                  "refold compress smollm2-135m-instruct --recipe recipes/direct_share_30.yaml --dry-run",
                  "refold compress --recipe small.recipe.yaml -o small.gguf --overwrite --json"});
    return [a, options, method] {
        if (options.recipe->count() + method->count() == 0)
            fail(ErrorCode::usage, "compress", "give --recipe or --method");
        if (options.output->count() == 0 && !a->dry_run)
            fail(ErrorCode::usage, "compress", "give --output, or --dry-run");
        run_compression(*a);
    };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"compress", VerbGroup::compression, "Apply a recipe, or one method, to a model", declare};

}  // namespace refold::cli::compress_verb
