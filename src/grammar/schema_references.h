// References of a JSON Schema by names and addresses, as places in it.
#pragma once

#include <nlohmann/json.hpp>

namespace refold {

// The schema with every "$ref" that leads into it as a place ("#/$defs/node"): those by an "$anchor", and
// those relative to an "$id". What leads elsewhere stays as it is. Without "$schema", an "$id" beside a
// "$ref" is no base, as draft 7 has it.
nlohmann::ordered_json with_local_references(const nlohmann::ordered_json& root);

}  // namespace refold
