"""A slot is not refilled while a device may still read it."""

from __future__ import annotations

from hpcai500.data.device_batches import HeldSlots


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.passed = log, name, False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.log.append(f"waited for {self.name}")
        self.passed = True


def held(most_held: int, events: int) -> tuple[HeldSlots, list[str], list[FakeEvent]]:
    log: list[str] = []
    slots = HeldSlots(lambda slot: log.append(f"released {slot}"), most_held)
    return slots, log, [FakeEvent(log, str(number)) for number in range(events)]


def test_a_slot_waits_for_its_event_and_not_longer() -> None:
    slots, log, events = held(2, 3)
    slots.add(0, events[0])
    slots.add(1, events[1])
    assert log == []
    events[0].passed = True
    slots.add(2, events[2])
    assert log == ["released 0"]


def test_the_oldest_is_waited_for_when_too_many_are_held() -> None:
    slots, log, events = held(1, 2)
    slots.add(3, events[0])
    slots.add(1, events[1])
    assert log == ["waited for 0", "released 3"]


def test_a_ring_without_spare_slots_waits_at_once() -> None:
    slots, log, events = held(0, 1)
    slots.add(0, events[0])
    assert log == ["waited for 0", "released 0"]


def test_a_flush_waits_for_all() -> None:
    slots, log, events = held(5, 2)
    slots.add(0, events[0])
    slots.add(1, events[1])
    slots.flush()
    assert log == ["waited for 0", "released 0", "waited for 1", "released 1"]
    slots.flush()
    assert len(log) == 4
