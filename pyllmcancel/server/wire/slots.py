"""The field `id_slot`, which llama-server's clients send to every endpoint that generates."""

from __future__ import annotations

ID_SLOT = (
    "The slot from whose prefix the request goes on, with `--slot-save-path`; -1: any. Without that option it has no"
    " effect: every slot can use what any other has computed."
)


def named_slot(id_slot: int | None) -> int | None:
    """Return the slot that a body names; None if it names none."""
    return None if id_slot is None or id_slot < 0 else id_slot
