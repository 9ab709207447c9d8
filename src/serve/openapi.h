// A machine-readable description of all endpoints (OpenAPI 3.1).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace refold {

// Fields and their ranges are those that the endpoints' parsers ask for. `with_key`: clients need one.
nlohmann::ordered_json openapi(const std::string& version, bool with_key);

}  // namespace refold
