"""A transport to another machine without any machine: it ends each try as a test says."""

from inbox_app.deliveries import RemoteTarget
from inbox_app.transports import Remote
from suzent_site.errors import NotFound

PLACES = {"suzent_peer": "tests.inbox_app.odd_transport.Post", "local": "inbox_app.local.Local"}


class Post(Remote):
    attempts = 3
    ends: list = []  # of the next tries, in order; a function is called with the parcel
    closed = gone = False

    def deliver(self, parcel):
        return Post.ends.pop(0)(parcel)

    def is_gone(self, message):
        return Post.gone

    def is_closed(self, target):
        return Post.closed

    def target(self, caller, agent_id):
        if agent_id != "peer:b":
            raise NotFound
        return RemoteTarget(agent_id, caller.session.project_id)

    def listing(self, caller, *, active, after, limit):
        about = {"title": "B", "kind": "remote", "status": "ready", "project_id": "demo", "parent_agent_id": None, "updated_at": "2030-01-01T00:00:00Z"}
        names = [f"peer:{name}" for name in "bcd" if f"peer:{name}" > after]
        return [{"agent_id": name, **about} for name in names[:limit]]

    def read(self, caller, agent_id, *, before, now):
        raise NotFound

    def stop(self, caller, agent_id, *, now):
        return False

    def obstacles(self, message, *, lane, now):
        return ["the post"]
