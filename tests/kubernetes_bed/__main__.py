"""A standing Kubernetes, for developers: ``python -m tests.kubernetes_bed`` starts it, or joins the one that is there, until Ctrl-C."""

from __future__ import annotations

import signal
import sys

from tests.kubernetes_bed import image
from tests.kubernetes_bed.build import client
from tests.kubernetes_bed.outside import joined, missing


def main() -> int:
    if why := missing():
        print(f"orch: no Kubernetes: {why}", file=sys.stderr)
        return 1
    with joined() as connection:
        print(f"export KUBECONFIG={connection.root}/admin.kubeconfig PATH={client()}:$PATH  # image: {image.TENSORFLOW}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
