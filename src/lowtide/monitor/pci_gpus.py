"""GPUs on the PCI bus: what is built in, whoever can read it.

That a node has no GPU may be said only where a GPU source or the bus says so. A card that the bus
shows and no source reads is there all the same, and what it does is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lowtide.files import read_or_empty

_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
# Display controllers (VGA, 3D, others) and accelerators. The makers' other devices, and the chips
# that show a server's console (ASPEED, Matrox), are none of these or of other makers.
_KINDS = ("0x0300", "0x0302", "0x0380", "0x1200")
# Graphics inside a processor of Intel's are on the first bus; those of AMD's have little memory of
# their own. Neither is what jobs ask for when they ask for a GPU.
_FIRST_BUS = "0000:00:"
_LEAST_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU on the bus.

    Attributes:
        maker: Who made it: NVIDIA, AMD, Intel.
        address: Where on the bus it is.
        has_driver: Whether a driver has taken it.
    """

    maker: str
    address: str
    has_driver: bool


def cards_on_bus(sysfs: Path) -> tuple[Card, ...] | None:
    """Return the GPUs that the bus shows; None where nobody can tell.

    Args:
        sysfs: Where /sys is; containers and recorded trees may have none.
    """
    bus = sysfs / "bus" / "pci" / "devices"
    try:
        devices = sorted(bus.iterdir())
    except OSError:
        return None
    # The GPU of a Tegra is on no bus.
    if b"tegra" in read_or_empty(str(sysfs / "firmware/devicetree/base/compatible")):
        return None
    return tuple(card for device in devices if (card := _card(device)) is not None)


def _card(device: Path) -> Card | None:
    maker = _MAKERS.get(_said(device, "vendor"))
    if maker is None or _said(device, "class")[:6] not in _KINDS:
        return None
    if (device / "physfn").exists() or (maker == "Intel" and device.name.startswith(_FIRST_BUS)):
        # A part of a card that is there as a whole, or graphics of the processor.
        return None
    memory = _said(device, "mem_info_vram_total")
    if maker == "AMD" and memory.isdigit() and int(memory) < _LEAST_BYTES:
        return None
    return Card(maker=maker, address=device.name, has_driver=(device / "driver").exists())


def _said(device: Path, name: str) -> str:
    return read_or_empty(str(device / name)).decode(errors="replace").strip().lower()


def count_unread(cards: tuple[Card, ...] | None, read: Iterable[str]) -> int | None:
    """Return how many GPUs of a node nobody reads; None where nobody knows whether there are more.

    Args:
        read: The names of those that are read: `gpu-0`, or `gpu-0/1` for an instance of it.
    """
    if cards is None:
        return None
    return max(len(cards) - len({name.partition("/")[0] for name in read}), 0)


def name_unread(cards: Iterable[Card]) -> dict[Card, str]:
    """Return in words which GPUs nobody reads: those of one maker together, by the first of them.

    Args:
        cards: The GPUs.
    """
    made: dict[str, list[Card]] = {}
    for card in cards:
        made.setdefault(card.maker, []).append(card)
    told = {}
    for maker, (first, *others) in made.items():
        many = "s are" if others else " is"
        more = f" and {len(others)} more" if others else ""
        them = "them" if others else "it"
        told[first] = (
            f"{1 + len(others)} {maker} GPU{many} on the PCI bus ({first.address}{more}) and "
            f"nobody reads {them}: what jobs use of {them} is unknown"
        )
    return told
