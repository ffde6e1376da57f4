"""Container images of a few kilobytes, written without a registry or a builder.

`pause` holds one program. `tensorflow` holds directories only: the containers of the bed get the machine's ``/usr`` and the Python of the
tests as read-only mounts (`base_spec`), as if they had come with the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE = "docker.io/bed/pause:1"
TENSORFLOW = "docker.io/bed/tensorflow:1"
_USR_LINKS = ("bin", "lib", "lib64", "sbin")
_EMPTY = ("dev", "etc", "home", "proc", "root", "run", "sys", "usr", "var", "work")


def pythons() -> list[Path]:
    """The directories of the Python that runs this, outermost first: the virtual environment and what it was made from."""
    wanted = [Path(prefix).resolve() for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    return [path for path in wanted if path != Path("/usr")]


def write_pause(program: Path, archive: Path) -> None:
    _write(PAUSE, archive, {"pause": program.read_bytes()}, (), ["/pause"], {})


def write_tensorflow(archive: Path) -> None:
    files: dict[str, bytes | str] = {
        "etc/nsswitch.conf": b"hosts: files dns\n",
        **{name: f"usr/{name}" for name in _USR_LINKS if (Path("/usr") / name).is_dir()},
    }
    path = f"{Path(sys.prefix).resolve()}/bin:/usr/local/bin:/usr/bin:/bin"
    _write(TENSORFLOW, archive, files, _EMPTY, ["/bin/sh"], {"PATH": path})


def base_spec(default: Mapping[str, Any]) -> dict[str, Any]:
    """containerd's default for a container, with the mounts that stand for the content of the images."""
    paths = [Path("/usr"), *pythons()]
    mounts = [{"destination": f"{path}", "source": f"{path}", "type": "bind", "options": ["rbind", "ro", "nosuid"]} for path in paths]
    return {**default, "mounts": [*default["mounts"], *mounts]}


def _write(
    name: str, archive: Path, files: Mapping[str, bytes | str], directories: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> None:
    """An archive as `docker save` writes it. `files`: contents, or where a link leads."""
    layer = _tar(_entries(files, directories))
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Env": [f"{key}={value}" for key, value in env.items()]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            "history": [{"created_by": "tests/kubernetes_bed"}],
        }
    ).encode()
    named = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": named, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    parts = {named: config, "layer.tar": layer, "manifest.json": manifest}
    archive.write_bytes(_tar((_file(path, data), data) for path, data in parts.items()))


def _entries(files: Mapping[str, bytes | str], directories: Sequence[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name in (*directories, "tmp"):
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name in ("tmp", "work") else 0o755
        yield info, b""
    for name, content in files.items():
        if isinstance(content, bytes):
            yield _file(name, content), content
        else:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, content, 0o777
            yield info, b""


def _file(name: str, content: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755
    return info


def _tar(entries: Iterator[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()
