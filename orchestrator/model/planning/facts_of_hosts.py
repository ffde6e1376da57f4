"""Defines what a plan needs to know of each host: its address, ports, cores, GPUs and directories."""

from __future__ import annotations

from worker.protocol.messages import Gpu, GpuHolder
from worker.values.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HostFacts:
    name: str
    address: str
    """The name or IP address by which the other hosts reach this host."""
    cores: int | None
    """None: unknown, in a dry run."""
    ports: tuple[int, ...] = ()
    """The ports that the agent holds, one per task; empty in a dry run."""
    run_dir: str | None = None
    """The path of the run directory on this host; None if the host does not see it."""
    gpus: tuple[Gpu, ...] | None = None
    """The GPUs that tasks may use; None in a dry run."""
    interface: str = ""
    """The network interface that the user chose, if any."""
    workdir: str | None = None
    """The path of the working directory on this host; None: the path in the spec."""
    taken: tuple[GpuHolder, ...] = ()
    """The `gpus` that other runs hold."""
    is_here: bool = True
    """The controller runs on this host."""

    def env(self) -> dict[str, str]:
        """The variables of all tasks on this host."""
        # Without the first two, NCCL and Gloo choose a network interface themselves.
        found = {name: self.interface for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if self.interface}
        if self.run_dir is not None:
            found |= {"ORCH_RUN_DIR": self.run_dir, "ORCH_CHECKPOINT_DIR": f"{self.run_dir}/checkpoints"}
        return found
