"""How each kind of platform is spoken to."""
