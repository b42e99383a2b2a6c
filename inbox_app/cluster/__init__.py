"""``manage.py cluster``: a django-q2 cluster, kept at work by a supervisor above it."""
