"""What the sensors tell while something runs."""

import torch

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


def two_passes(net, train, held_out):
    """Train on each batch, then validate on the others, twice."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(2):
        for x in train:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for x in held_out:
                net(x)
