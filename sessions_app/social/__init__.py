"""Sessions with people on other platforms: what comes in is a direct turn, what is answered leaves through an outbox."""
