"""What WAKE names in the simulation: every wake-up is lost, only counted. Whoever relied on one would be found out."""

rung = 0


def ring() -> None:
    global rung
    rung += 1
