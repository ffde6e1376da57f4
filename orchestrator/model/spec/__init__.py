"""The spec: what the user wants. `document` reads a text, `parse` makes a `ClusterSpec` of it; the values are re-exported here."""

from .sections import DEFAULT_COLLECTIVES as DEFAULT_COLLECTIVES
from .sections import DEFAULT_PRELOAD as DEFAULT_PRELOAD
from .sections import PROGRAM_KINDS as PROGRAM_KINDS
from .sections import BackendSpec as BackendSpec
from .sections import ClusterSpec as ClusterSpec
from .sections import GpuWish as GpuWish
from .sections import HostSpec as HostSpec
from .sections import Restart as Restart
from .sections import TaskDevices as TaskDevices
from .sections import TaskSpec as TaskSpec
from .sections import Timeouts as Timeouts
from .sections import trains as trains
from .sections import works as works
