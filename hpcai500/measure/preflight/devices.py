"""Whether the device of each rank answers: a small computation with a known result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpcai500.measure.preflight.everyone import Answer, failures, listed, values
from hpcai500.system.checks import Check
from hpcai500.system.preflight import DEVICES

_COUNT = 100_000


@dataclass(frozen=True)
class Device:
    """What a rank computes on.

    Attributes:
        name: of the model.
        identity: which one it is, on its host; None where ranks may share it.
        on_host: how many the rank can see.
        answer: the sum of the first whole numbers.
    """

    name: str
    identity: str | None
    on_host: int
    answer: float


def ask_device(device: torch.device) -> Device:
    """Have `device` compute.

    Raises:
        RuntimeError: it does not; the message is the driver's.
    """
    numbers = torch.arange(1, _COUNT + 1, dtype=torch.float64, device=device)
    answer = float(numbers.sum().cpu())
    if device.type != "cuda":
        return Device("cpu", None, 1, answer)
    properties = torch.cuda.get_device_properties(device)
    identity = str(getattr(properties, "uuid", device.index))
    return Device(properties.name, identity, torch.cuda.device_count(), answer)


def judge_devices(answers: Sequence[Answer[Device]]) -> Check:
    """Whether all devices answered, and no two ranks have the same one."""
    fix = "see `nvidia-smi` and `dmesg` on that host, or leave it out"
    if failed := failures(DEVICES, answers, "cannot compute", fix):
        return failed
    found = values(answers)
    wrong = [answer.name for answer, device in found if device.answer != _COUNT * (_COUNT + 1) / 2]
    if wrong:
        return Check(DEVICES, "fail", f"{listed(wrong)}: a sum of whole numbers comes out wrong", fix)
    if shared := _shared(found):
        return Check(
            DEVICES,
            "fail",
            f"{shared} share one device",
            "start one rank a device, and let the launcher show each rank its own, or all ranks all of them",
        )
    return Check(DEVICES, "pass", _in_words(found))


def _shared(found: Sequence[tuple[Answer[Device], Device]]) -> str | None:
    users: dict[tuple[str, str], list[str]] = {}
    for answer, device in found:
        if device.identity is not None:
            users.setdefault((answer.host, device.identity), []).append(answer.name)
    return next((listed(names) for names in users.values() if len(names) > 1), None)


def _in_words(found: Sequence[tuple[Answer[Device], Device]]) -> str:
    models = [device.name for _, device in found]
    counts = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    answer, device = found[0]
    ranks = sum(1 for other, _ in found if other.host == answer.host)
    if device.on_host > ranks:
        return f"{counts} answer, of {device.on_host} on host {answer.host}: --procs {device.on_host} asks them all"
    return f"{counts}: each answers"
