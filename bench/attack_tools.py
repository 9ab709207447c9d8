"""What the attacks of bench/attacks are made of: connections, requests and loops. Python's standard library only."""
import json
import os
import selectors
import socket
import ssl
import time

HOST = "127.0.0.1"


class Target:
    """A server that is attacked, until a moment on time.monotonic()'s clock."""

    def __init__(self, port, key, model, until):
        self.port, self.key, self.model, self.until = port, key, model, until
        self.answers = {}

    def on(self):
        return time.monotonic() < self.until

    def count(self, what):
        self.answers[what] = self.answers.get(what, 0) + 1

    def connect(self, receive_buffer=0):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(max(0.1, min(5.0, self.until - time.monotonic())))
        connection.connect((HOST, self.port))
        return connection

    def tls(self, connection):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(connection)

    def head(self, path="/v1/completions", length=0, more=""):
        return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {length}\r\n{more}\r\n").encode()

    def request(self, body, path="/v1/completions"):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return self.head(path, len(body)) + body

    def send(self, data, receive_buffer=0):
        """The connection that sent `data`; None when the server closed it meanwhile."""
        connection = self.connect(receive_buffer)
        try:
            connection.sendall(data)
        except OSError:
            connection.close()
            return None
        return connection

    def ask(self, data):
        """Sends `data` and reads to the end of the first response's beginning; counts its status."""
        connection = self.send(data)
        if connection is None:
            self.count("cut off")
            return
        try:
            received = connection.recv(65536)
            while received and self.on() and connection.recv(1 << 20):
                pass
        except OSError:
            received = b""
        connection.close()
        self.count(received[9:12].decode("latin-1") if received else "none")

    def repeat(self, data):
        """The same request again and again; `Connection: close` so that each has an end."""
        if b"Connection:" not in data:
            data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        while self.on():
            try:
                self.ask(data)
            except OSError:
                self.count("no connection")

    def hold(self, count, first, drip=b""):
        """Keeps `count` connections open, each of which sends `first` and then a byte of `drip` now and then."""
        poll = selectors.DefaultSelector()
        sent = 0
        while self.on():
            while len(poll.get_map()) < count and self.on():
                try:
                    connection = self.send(first)
                except OSError:
                    self.count("no connection")
                    break
                if connection is not None:
                    connection.setblocking(False)
                    poll.register(connection, selectors.EVENT_READ)
            for key, _ in poll.select(0.05):
                try:
                    data = key.fileobj.recv(4096)
                except OSError:
                    data = b""
                self.count(data[9:12].decode("latin-1") if data.startswith(b"HTTP") else "closed")
                if not data:
                    poll.unregister(key.fileobj)
                    key.fileobj.close()
            if drip:
                for key in list(poll.get_map().values()):
                    try:
                        key.fileobj.send(drip[sent % len(drip):][:1])
                    except OSError:
                        pass
                sent += 1
                time.sleep(0.2)


def run_attack(attack, target):
    """In a process of its own, which leaves the processor to everybody else."""
    os.nice(19)
    try:
        attack(target)
    except (OSError, ValueError):
        target.count("gave up")
    return target.answers
