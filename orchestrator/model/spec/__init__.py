"""The spec: what the user wants. `document` reads a text, `parse` makes a `ClusterSpec` of it; the values are re-exported here."""

from .sections.backend_sections import BACKENDS as BACKENDS
from .sections.backend_sections import BackendSpec as BackendSpec
from .sections.backend_sections import KubernetesSettings as KubernetesSettings
from .sections.backend_sections import LocalSettings as LocalSettings
from .sections.backend_sections import NodeSpec as NodeSpec
from .sections.backend_sections import SlurmSettings as SlurmSettings
from .sections.backend_sections import SshSettings as SshSettings
from .sections.gpu_wish import GpuWish as GpuWish
from .sections.host_list import HostSpec as HostSpec
from .sections.pod_section import PodSettings as PodSettings
from .sections.run_sections import DEFAULT_PRELOAD as DEFAULT_PRELOAD
from .sections.run_sections import PROGRAM_KINDS as PROGRAM_KINDS
from .sections.run_sections import ClusterSpec as ClusterSpec
from .sections.run_sections import Restart as Restart
from .sections.run_sections import Timeouts as Timeouts
from .sections.run_sections import works as works
from .sections.task_sections import TaskDevices as TaskDevices
from .sections.task_sections import TaskSpec as TaskSpec
from .sections.task_sections import trains as trains
