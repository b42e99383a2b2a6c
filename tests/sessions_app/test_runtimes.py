"""The runtime contract, echo, and every directive of the scripted runtime."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from sessions_app.runtimes.base import RunningTurn, TurnInput, Unavailable, UnknownRuntime, runtime_named
from sessions_app.runtimes.scripted import ScriptFailed
from suzent_site.errors import NotFound


@dataclass
class Toolbox:
    """Stands where the engine passes in its tools: notes each call; refuses whatever names ``nobody``."""

    calls: list = field(default_factory=list)

    def call(self, name, /, **arguments):
        if arguments.get("agent_id") == "nobody":
            raise NotFound
        self.calls.append((name, arguments))
        return {"done": name}


def a_turn(*texts, kind="user_message", attempt=1, tools=None):
    inputs = tuple(TurnInput(f"m{n}", kind, text, attempt) for n, text in enumerate(texts, 1))
    return RunningTurn(
        agent_id="planner", config={}, inputs=inputs, history=lambda limit: [], tools=tools or Toolbox(),
        emit=lambda event: None, stop=threading.Event(),
    )


def reply(*texts, **options):
    return runtime_named("scripted").run(a_turn(*texts, **options)).text


def test_echo_answers_ok_and_the_text():
    assert runtime_named("echo").run(a_turn("hello\n!fail 9")).text == "ok: hello\n!fail 9"


def test_an_unknown_runtime_is_a_clear_error():
    with pytest.raises(UnknownRuntime, match="no runtime 'gpt'; there are: echo, scripted"):
        runtime_named("gpt")


def test_a_runtime_is_made_once_for_a_process():
    assert runtime_named("scripted") is runtime_named("scripted")


def test_plain_lines_are_answered_with_ok():
    assert reply("two\n\nlines") == "ok: two\n\nlines"


def test_what_directives_produce_comes_in_order_and_plain_lines_last():
    assert reply("first plain\n!say one\n!bytes 3\nsecond plain\r\n!say two") == "one\nxxx\ntwo\nok: first plain\nsecond plain"


def test_say_gives_exactly_its_text():
    assert reply("!say  a !b \\n ") == " a !b \\n "


def test_a_script_without_output_has_an_empty_reply():
    assert reply("!sleep 0\n!fail 0\n!unavailable 0\n") == ""


@pytest.mark.parametrize("kind", ["subagent_result", "delivery_failure", "remote_agent_message"])
def test_directives_in_results_notices_and_remote_mail_are_only_text(kind):
    assert reply("!fail 9\nhello", kind=kind) == "ok: !fail 9\nhello"


@pytest.mark.parametrize("kind", ["agent_message", "user_message", "subagent_task"])
def test_directives_are_obeyed_in_mail_and_tasks(kind):
    assert reply("!say hi", kind=kind) == "hi"


def test_fail_fails_while_the_attempt_number_is_at_most_n():
    with pytest.raises(ScriptFailed):
        reply("!fail 2\nhi", attempt=2)
    assert reply("!fail 2\nhi", attempt=3) == "ok: hi"


def test_unavailable_defers_while_the_attempt_number_is_at_most_n():
    with pytest.raises(Unavailable) as caught:
        reply("!unavailable 1\nhi", attempt=1)
    assert caught.value.retry_after is None
    assert reply("!unavailable 1\nhi", attempt=2) == "ok: hi"


def test_tools_get_their_arguments_and_line_breaks_are_real_in_what_is_sent():
    tools = Toolbox()
    text = reply("!send writer say\\nit !twice\n!spawn count\\nthis\n!list\n!list recent\n!read writer\n!stop writer", tools=tools)
    assert tools.calls == [
        ("agent_send", {"agent_id": "writer", "message": "say\nit !twice"}),
        ("agent", {"description": "count\nthis"}),
        ("agent_list", {}),
        ("agent_list", {"status": "recent"}),
        ("agent_read", {"agent_id": "writer"}),
        ("agent_stop", {"agent_id": "writer"}),
    ]
    assert [json.loads(line)["done"] for line in text.splitlines()] == [name for name, _ in tools.calls]


def test_a_refused_tool_says_its_code_and_the_turn_goes_on():
    assert reply("!send nobody hi\n!say still here") == "error: not_found\nstill here"


@pytest.mark.parametrize(
    "line",
    ["!sleep x", "!sleep", "!sleep -1", "!sleep nan", "!sleep inf", "!fail", "!fail 1.5", "!bytes 99999999999", "!dance", "!", "! say x"],
)
def test_a_directive_that_cannot_be_read_is_an_error_line_and_the_turn_goes_on(line):
    first, second = reply(f"{line}\n!say still here").splitlines()
    assert first.startswith("error: ")
    assert second == "still here"


def test_a_stop_ends_a_sleep_at_once_and_keeps_what_was_produced():
    turn = a_turn("!say before\n!sleep 30\n!say after\nplain")
    threading.Timer(0.05, turn.stop.set).start()
    began = time.monotonic()
    assert runtime_named("scripted").run(turn).text == "before"
    assert time.monotonic() - began < 5


def test_crash_is_refused_unless_allowed(settings):
    settings.SUZENT_ALLOW_CRASH = False
    assert reply("!crash 1\nhi") == "error: !crash needs SUZENT_ALLOW_CRASH=1\nok: hi"


def test_crash_is_harmless_past_its_attempts(settings):
    settings.SUZENT_ALLOW_CRASH = True
    assert reply("!crash 1\nhi", attempt=2) == "ok: hi"


def test_crash_ends_the_process_at_once_and_leaves_no_effect(tmp_path):
    effects = tmp_path / "effects.jsonl"
    script = (
        "import django, os, threading; django.setup()\n"
        "from sessions_app.runtimes.base import *\n"
        "given = TurnInput('m', 'user_message', '!crash 1')\n"
        "runtime_named('scripted').run(RunningTurn('a', {}, (given,), list, None, print, threading.Event()))"
    )
    environment = os.environ | {"SUZENT_ALLOW_CRASH": "1", "SUZENT_EFFECTS_FILE": str(effects)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False)
    assert ended.returncode == 9
    assert not effects.exists()


def test_each_executed_turn_leaves_one_line_in_the_effects_file(settings, tmp_path):
    settings.SUZENT_EFFECTS_FILE = str(tmp_path / "effects.jsonl")
    reply("hi", attempt=3)
    with pytest.raises(ScriptFailed):
        reply("!fail 1")
    with pytest.raises(Unavailable):
        reply("!unavailable 1")
    stopped = a_turn("!sleep 9")
    stopped.stop.set()
    runtime_named("scripted").run(stopped)
    effects = [json.loads(line) for line in (tmp_path / "effects.jsonl").read_text().splitlines()]
    assert [effect["outcome"] for effect in effects] == ["ok", "failed", "unavailable", "stopped"]
    first = effects[0]
    assert (first["message_id"], first["attempt"], first["agent_id"], first["pid"]) == ("m1", 3, "planner", os.getpid())
    assert first["started"] <= first["ended"]
