"""The spec: what the user wants. `document` reads a text, `parse` makes a `ClusterSpec` of it; the values are re-exported here."""

from .backend import BACKENDS as BACKENDS
from .backend import BackendSpec as BackendSpec
from .backend import LocalSettings as LocalSettings
from .backend import SshSettings as SshSettings
from .gpus import GpuWish as GpuWish
from .hosts import HostSpec as HostSpec
from .sections import DEFAULT_PRELOAD as DEFAULT_PRELOAD
from .sections import PROGRAM_KINDS as PROGRAM_KINDS
from .sections import ClusterSpec as ClusterSpec
from .sections import Restart as Restart
from .sections import Timeouts as Timeouts
from .sections import works as works
from .tasks import TaskDevices as TaskDevices
from .tasks import TaskSpec as TaskSpec
from .tasks import trains as trains
