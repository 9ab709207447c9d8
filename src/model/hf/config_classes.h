// The configuration classes of transformers: the fields of config.json that they have, and their defaults.
#pragma once

#include <span>

namespace refold {

struct ConfigClass {
    const char* model_type;
    // A JSON object of field and default. "field?" may be null; "@other" is another name of the field that is
    // its value.
    const char* fields;
};

// One for each model_type that a family reads. Written by scripts/make-config-classes.
std::span<const ConfigClass> config_classes();

}  // namespace refold
