// A certificate for localhost that vouches for itself, and a client that takes it.
#pragma once

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "core/temp_folder.h"
#include "serve/http_client.h"

namespace refold {

struct PemFiles {
    std::string certificate, key;
};

// Writes the PEM files NAME.crt and NAME.key, of a certificate for `subject`.
inline PemFiles make_certificate(const TempFolder& folder, const std::string& name,
                                 const std::string& subject) {
    const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 86400);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* const subject_name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(subject_name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), subject_name);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    PemFiles files{folder / (name + ".crt"), folder / (name + ".key")};
    const std::unique_ptr<BIO, int (*)(BIO*)> out(BIO_new_file(files.certificate.c_str(), "w"), BIO_free);
    PEM_write_bio_X509(out.get(), certificate.get());
    const std::unique_ptr<BIO, int (*)(BIO*)> key_out(BIO_new_file(files.key.c_str(), "w"), BIO_free);
    PEM_write_bio_PrivateKey(key_out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return files;
}

// Asks over TLS. The connection to `port` is made, and the handshake begins, when it is created.
class TlsClient {
public:
    explicit TlsClient(int port, int most_version = TLS1_3_VERSION) : tcp_(port) {
        context_.reset(SSL_CTX_new(TLS_client_method()));
        SSL_CTX_set_max_proto_version(context_.get(), most_version);
        SSL_CTX_set_min_proto_version(context_.get(), 0);
        SSL_CTX_set_security_level(context_.get(), 0);  // lets old versions try
        ssl_.reset(SSL_new(context_.get()));
        SSL_set_fd(ssl_.get(), tcp_.socket());
        connected_ = SSL_connect(ssl_.get()) == 1;
    }
    bool connected() const { return connected_; }
    SSL* ssl() { return ssl_.get(); }
    std::string version() const { return SSL_get_version(ssl_.get()); }
    std::string subject() const {
        const std::unique_ptr<X509, void (*)(X509*)> shown(SSL_get1_peer_certificate(ssl_.get()), X509_free);
        char text[256] = "";
        if (shown)
            X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, text, sizeof text);
        return text;
    }
    bool send(std::string_view text) {
        return SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())) > 0;
    }
    // Reads until `text` has come or the connection ends; returns everything.
    std::string read_until(std::string_view text) {
        while (received_.find(text) == std::string::npos) {
            char buffer[16384];
            const int count = SSL_read(ssl_.get(), buffer, sizeof buffer);
            if (count <= 0) break;
            received_.append(buffer, static_cast<size_t>(count));
        }
        return received_;
    }
    // How the connection ended: SSL_ERROR_ZERO_RETURN when the server has said so.
    int end() {
        char byte = 0;
        const int count = SSL_read(ssl_.get(), &byte, 1);
        return SSL_get_error(ssl_.get(), count);
    }

private:
    HttpClient tcp_;
    std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, SSL_CTX_free};
    std::unique_ptr<SSL, void (*)(SSL*)> ssl_{nullptr, SSL_free};
    bool connected_ = false;
    std::string received_;
};

}  // namespace refold
