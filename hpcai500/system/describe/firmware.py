"""The machine and its firmware as the kernel shows them to any user."""

from __future__ import annotations

from hpcai500.system.describe.files import read
from hpcai500.system.describe.part import Absent, Host, Part

# Serial numbers lie beside these, and stay there.
_NAMES = ("sys_vendor", "product_name", "board_vendor", "board_name", "bios_vendor", "bios_version", "bios_date")


def describe_firmware(host: Host) -> Part:
    """`machine`: vendor, product, board and BIOS."""
    found = {name: read(host.root / "sys/class/dmi/id" / name) or None for name in _NAMES}
    # ARM nodes without SMBIOS have a device tree.
    found["product_name"] = found["product_name"] or _tree_model(host)
    if any(found.values()):
        return Part({"machine": found})
    return Part(
        {"machine": None}, absent=[Absent("vendor and model of the machine", "dmidecode -t system", "no SMBIOS")]
    )


def _tree_model(host: Host) -> str | None:
    model = read(host.root / "proc/device-tree/model")
    return model.strip("\0") if model else None
