#include "serve/page.h"

#include "serve/endpoint.h"

namespace refold::page_endpoint {
namespace {

void answer(Service&, const httplib::Request&, httplib::Response& response) {
    response.set_header("Content-Security-Policy", page_security_policy());
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-cache");
    response.set_content(std::string(kPage), "text/html; charset=utf-8");
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET", .path = "/", .summary = "The page", .open = true, .type = "text/html", .answer = answer};

}  // namespace refold::page_endpoint
