"""What WAKE names in the simulation: every wake-up is lost, only noted. Whoever relied on one would be found out."""

rung: list[str] = []


def ring() -> None:
    rung.append("ding")
