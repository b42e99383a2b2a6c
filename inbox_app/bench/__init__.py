"""Speed and memory, proven by ``manage.py bench`` in a database of its own that is made and thrown away."""
