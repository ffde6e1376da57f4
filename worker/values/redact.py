"""Which variables of an environment orch shows, of a host's and of the spec's; and texts without what looks like a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")
PREFIXES = ("CUDA_", "TF_", "XLA_", "KERAS_", "NCCL_", "GRPC_", "OMP_", "ORCH_", "NVIDIA_", "TPU_")
NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR")
MOST_CHARACTERS = 2000
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)
_LOGIN = re.compile(r"//[^/@]*@")


def disclose(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how TensorFlow runs, except those whose name looks like a secret. Passwords of proxies are left out."""
    found = {}
    for name, value in environment.items():
        if name.lower() in PROXIES:
            found[name] = _LOGIN.sub("//…@", value)
        elif (name.startswith(PREFIXES) or name in NAMES) and not _SECRET.search(name):
            found[name] = value[:MOST_CHARACTERS]
    return found


_NAME = r"[\w-]*(?:(?i:token(?!s|iz)|secret|passw(?:or)?d|passphrase|credential|(?:api|access|private|auth)[_-]?key)|TOKEN|KEY)[\w-]*"
# `API_KEY=abc`, `"password": "a b"`, `--token abc`, `"--token", "abc"`, `Bearer abc`.
_NAMED = re.compile(
    rf"""({_NAME}(?:["'],\s*(?=["'])|["']?(?:\s*[=:]\s*|\s+(?=[^\s=:]{{8}}))))("[^"\n]*"?|'[^'\n]*'?|[^\s"',;&]+)|\bBearer\s+[^\s"',;]{{8,}}"""
)


def hide_secrets(text: str) -> str:
    """The text with ``…`` in place of passwords and keys, as far as a name before them tells what they are, and of logins in addresses."""
    return _LOGIN.sub("//…@", _NAMED.sub(lambda found: f"{found[1] or 'Bearer '}…", text))
