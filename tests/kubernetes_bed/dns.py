"""A stand-in for CoreDNS, which Debian has not: addresses of headless Services, from a watch on their Endpoints.

``SERVICE.NAMESPACE.svc.cluster.local`` has the addresses of all its pods, ``HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local`` that of one.
Names that are not there are refused as such (NXDOMAIN), and other types of records are empty. Run as ``python dns.py KUBECTL ADDRESS``.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

Records = dict[str, list[str]]
_NXDOMAIN, _ADDRESS, _TTL_S = 3, 1, 1


def records_of(endpoints: dict[str, Any]) -> Records:
    """The names that one Endpoints object gives, with their IPv4 addresses."""
    meta = endpoints["metadata"]
    service = f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
    found: Records = {}
    for subset in endpoints.get("subsets") or ():
        for address in subset.get("addresses") or ():
            found.setdefault(service, []).append(address["ip"])
            if "hostname" in address:
                found.setdefault(f"{address['hostname']}.{service}", []).append(address["ip"])
    return found


def answer(question: bytes, records: Records) -> bytes:
    """The answer to one question, as RFC 1035 lays them out."""
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("ascii", "replace").lower())
        at += 1 + question[at]
    (kind,) = struct.unpack(">H", question[at + 1 : at + 3])
    name = ".".join(labels)
    is_known = name in records or any(known.endswith(f".{name}") for known in records)
    addresses = records.get(name, []) if kind == _ADDRESS else []
    flags = 0x8580 | (0 if is_known else _NXDOMAIN)
    head = question[:2] + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0) + question[12 : at + 5]
    # 0xC00C: the name of the question.
    return head + b"".join(struct.pack(">HHHIH", 0xC00C, _ADDRESS, 1, _TTL_S, 4) + socket.inet_aton(address) for address in addresses)


def main(kubectl: str, address: str) -> None:
    objects: dict[tuple[str, str], Records] = {}

    def watch() -> None:
        decoder = json.JSONDecoder()
        while True:  # kubectl's watch ends with the API server's, after half an hour or a restart
            argv = [kubectl, "get", "endpoints", "--all-namespaces", "--watch", "--output", "json", "--output-watch-events"]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                text = ""
                for line in process.stdout:
                    text += line
                    try:
                        event, _ = decoder.raw_decode(text.lstrip())
                    except ValueError:
                        continue
                    text, found = "", event["object"]
                    key = (found["metadata"]["namespace"], found["metadata"]["name"])
                    if event["type"] == "DELETED":
                        objects.pop(key, None)
                    else:
                        objects[key] = records_of(found)
            threading.Event().wait(0.5)

    threading.Thread(target=watch, daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            question, sender = server.recvfrom(512)
            if len(question) > 16:
                records: Records = {}
                for each in [*objects.values()]:
                    records.update(each)
                server.sendto(answer(question, records), sender)


if __name__ == "__main__":
    main(*sys.argv[1:])
