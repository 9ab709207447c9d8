"""Attacks on connections, HTTP and TLS, for bench/attacks. Most need no key."""
import random
import socket
import time

KEEP = 400  # connections that an attack holds


def slow_heads(t):
    t.hold(KEEP, b"GET /health HTTP/1.1\r\nX: ", b"slow ")


def slow_bodies(t):
    t.hold(KEEP, t.head(length=8 << 20) + b'{"prompt": "', b"slow ")


def idle_connections(t):
    t.hold(3000, b"")


def connection_churn(t):
    while t.on():
        t.connect().close()
        t.count("connected")


def half_closed(t):
    while t.on():
        connection = t.send(t.request({"prompt": "a", "max_tokens": 64, "ignore_eos": True}))
        if connection is not None:
            connection.shutdown(socket.SHUT_WR)
            try:
                t.count("answered" if connection.recv(100) else "closed")
            except OSError:
                t.count("none")
            connection.close()


def garbage(t):
    noise = random.Random(1)
    while t.on():
        t.ask(noise.randbytes(20000))


def many_headers(t):
    t.repeat(b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(3000)) + b"\r\n")


def endless_header(t):
    t.repeat(b"GET /health HTTP/1.1\r\nX: " + b"y" * (1 << 20))


def bad_chunks(t):
    head = t.head().replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    sizes = [b"fffffffffffffffff", b"-1", b"0x5", b"5;" + b"a" * 100000, b"ffffffff", b" 5", b"5\n"]
    while t.on():
        t.ask(head + sizes[random.randrange(len(sizes))] + b"\r\nhello\r\n0\r\n\r\n")


def tiny_chunks(t):
    head = t.head().replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    t.repeat(head + b'1\r\n"\r\n' * 400000 + b"0\r\n\r\n")


def smuggling(t):
    t.repeat(t.request({"prompt": "a"}).replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type"))


def pipelining(t):
    t.repeat(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000 + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")


def expect_continue(t):
    t.hold(KEEP, t.head(length=8 << 20, more="Expect: 100-continue\r\n"))


def wrong_keys(t):
    t.repeat(t.request({"prompt": "a"}).replace(t.key.encode(), b"k" * 4000))


def metrics_flood(t):
    t.repeat(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + t.key.encode() + b"\r\n\r\n")


def never_read(t):
    body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 20}
    held = []
    while t.on():
        connection = t.send(t.request(body), receive_buffer=2048)
        if connection is not None:
            held = held[-50:] + [connection]
        t.count("opened")
        time.sleep(0.02)


def cancel_storm(t):
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
    while t.on():
        connection = t.send(t.request(body))
        if connection is not None:
            time.sleep(random.random() / 50)
            connection.close()
        t.count("cancelled")


def tls_garbage(t):
    noise = random.Random(1)
    while t.on():
        t.ask(b"\x16\x03\x01\x02\x00\x01\x00" + noise.randbytes(1000))


def tls_plain_http(t):
    t.repeat(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")


def tls_half_handshakes(t):
    t.hold(KEEP, b"\x16\x03\x01", b"\x02\x00\x01\x00\x01\xfc\x03\x03")


def tls_handshakes(t):
    while t.on():
        connection = t.connect()
        try:
            t.tls(connection).close()
            t.count("shaken")
        except OSError:
            t.count("failed")
            connection.close()


def tls_slow_records(t):
    def open_one():
        connection = t.tls(t.connect())
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        return connection

    held = []
    while t.on():
        if len(held) < 100:
            held.append(open_one())
        for connection in held:
            connection.sendall(b"X")
        t.count("written")


# Name, what it does, attack.
PLAIN = [
    ("slow heads", "400 connections, a byte at a time", slow_heads),
    ("slow bodies", "400 bodies of 8 MiB, a byte at a time", slow_bodies),
    ("idle connections", "3000 that say nothing", idle_connections),
    ("connection churn", "opened and closed as fast as can be", connection_churn),
    ("half-closed sockets", "requests whose client has closed its end for sending", half_closed),
    ("garbage", "bytes that are no HTTP", garbage),
    ("header flood", "3000 headers", many_headers),
    ("endless header", "a line of 1 MiB", endless_header),
    ("chunked trickery", "sizes that overflow, signs, long extensions", bad_chunks),
    ("tiny chunks", "400,000 chunks of a byte", tiny_chunks),
    ("smuggling", "both a length and chunks", smuggling),
    ("pipelining", "1000 requests in one piece", pipelining),
    ("100-continue", "400 clients that ask whether to go on, and do not", expect_continue),
    ("wrong keys", "of 4000 bytes, all the time", wrong_keys),
    ("metrics flood", "/metrics all the time", metrics_flood),
    ("never-read streams", "long answers that nobody reads", never_read),
    ("cancel storm", "requests that are left at once", cancel_storm),
]
TLS = [
    ("TLS garbage", "hellos of random bytes", tls_garbage),
    ("TLS: plain HTTP", "on the TLS port", tls_plain_http),
    ("TLS: half handshakes", "400 hellos, a byte at a time", tls_half_handshakes),
    ("TLS: handshakes", "one after another", tls_handshakes),
    ("TLS: slow records", "100 connections, a record for each byte", tls_slow_records),
]
