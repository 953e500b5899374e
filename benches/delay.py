"""A TCP proxy that holds back what the server says: delay.py PORT TARGET_PORT MILLISECONDS.

A round trip through it takes that much longer. All that waits has waited for the same time, so one queue is enough.
"""

import select
import socket
import sys
import time
from collections import deque


def main():
    port, target, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    peers, servers, late = {}, set(), deque()
    while True:
        # Not epoll: its timeout is a whole number of milliseconds.
        rest = max(0, late[0][0] - time.monotonic()) if late else None
        for ready in select.select([listener, *peers], [], [], rest)[0]:
            if ready is listener:
                client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", target))
                peers |= {client: server, server: client}
                servers.add(server)
                for end in [client, server]:
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif ready in peers:
                said = receive(ready)
                if not said:
                    end = peers.pop(ready)
                    peers.pop(end)
                    servers -= {ready, end}
                    ready.close()
                    end.close()
                elif ready in servers and delay:
                    late.append((time.monotonic() + delay, peers[ready], said))
                else:
                    send(peers[ready], said)
        while late and late[0][0] <= time.monotonic():
            _, client, said = late.popleft()
            send(client, said)


def receive(end):
    try:
        return end.recv(1 << 18)
    except OSError:
        return b""


def send(end, said):
    """What is for an end that has gone is dropped; the loop hears of it from the other side."""
    try:
        end.sendall(said)
    except OSError:
        pass


main()
