"""What the sensors tell while something runs."""

from flatline.sensors.live import LiveSensors


def seen(act, *events):
    """Events of these kinds while ``act`` runs; a sensor that breaks fails the test."""
    found, broken = [], []
    sensors = LiveSensors(found.append, wants=lambda event: True, budget=1.0, on_broken=lambda *why: broken.append(why))
    sensors.attach()
    try:
        act()
    finally:
        sensors.finish("finished", None)
        sensors.detach()
    assert broken == []
    return [event for event in found if isinstance(event, events)]
