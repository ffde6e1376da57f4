"""What an agent begins with that does not begin with nothing."""

from __future__ import annotations

from ...fast_dataclass import dataclass
from ..template.template_client import Running


@dataclass(frozen=True, slots=True)
class Arrival:
    """`seed`: orders that were read already; `note`: a line for the user, if there is one and the run wants a template; `template`: the
    first, if it is there."""

    seed: bytes = b""
    note: str = ""
    template: Running | None = None
