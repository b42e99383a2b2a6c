"""Chaos: a real installation takes numbered mail while a killer shoots its processes; a checker reads what came of it.

    uv run python -m tests.acceptance.chaos --full                  three minutes on SQLite
    uv run python -m tests.acceptance.chaos --full --own-servers    on a PostgreSQL and a Redis started for it
    uv run python -m tests.acceptance.chaos --full --database URL --redis URL    on those of somebody else

``traffic`` sends and watches over REST, ``killer`` shoots, ``checker`` judges from the tables, ``play`` puts them together.
The seed decides the mail and the order of the shots; when they fall depends on the machine, so the killer keeps a log.
"""
