"""The cheapest client that there is: a request that is ready, a socket, and as little Python as possible around them.

Run as a program it asks as fast as it can, over several connections, for some seconds, and prints how often.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

QUERY = "query person($name: String) { match { $p: Person { name: $name } } return { $p.name, $p.age } }"
PEOPLE = 10_000
_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


def body_of(number: int) -> bytes:
    return json.dumps({"query": QUERY, "params": {"name": f"p{number % PEOPLE}"}}).encode()


class Raw:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST /query HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n".encode()

    def ask(self, body: bytes) -> bytes:
        """Send a question, and wait for all of the answer."""
        self._socket.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))
        found = self._socket.recv(65536)
        while (end := found.find(_END)) < 0:
            found += self._more()
        at = found.find(_LENGTH) + len(_LENGTH)
        missing = int(found[at : found.find(b"\r", at)]) + end + len(_END) - len(found)
        while missing > 0:
            more = self._more()
            found, missing = found + more, missing - len(more)
        if not found.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(found[:200])
        return found[end + len(_END) :]

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> bytes:
        more = self._socket.recv(65536)
        if not more:
            raise ConnectionError("the server closed the connection")
        return more


def ask_until(address: str, end: float, counts: list[int]) -> None:
    connection = Raw(address)
    number = 0
    while time.monotonic() < end:
        connection.ask(body_of(number))
        number += 1
    connection.close()
    counts.append(number)


def main() -> None:
    address, connections, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    counts: list[int] = []
    start = time.monotonic()
    threads = [threading.Thread(target=ask_until, args=(address, start + seconds, counts)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"asked": sum(counts), "seconds": time.monotonic() - start, "busy": time.process_time()}))


if __name__ == "__main__":
    main()
