"""People on other platforms, end to end through ``manage.py up``: the README's webhook, and Telegram through a fake Bot API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sessions_app.social.sender import REPEAT
from tests.bot_api import TOKEN, bot_api

pytestmark = pytest.mark.once
ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_webhook_of_the_readme_works_as_pasted(site):
    site.up()
    block = re.search(r"```bash\n(uv run -q manage.py project create chat\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    here = block.replace("uv run -q", sys.executable).replace("127.0.0.1:25314", f"127.0.0.1:{site.port}")
    shell = subprocess.run(["bash", "-c", here], cwd=ROOT, env=site.environment, capture_output=True, text=True, timeout=120, check=True)
    queued = next(line for line in shell.stdout.splitlines() if "event_id" in line)
    assert json.loads(queued) == {"event_id": "1", "agent_id": "social-bridge-alice", "status": "queued"}
    site.wait_for(lambda: answers(site) == ["ok: Hello"], within=30)


def test_telegram_answers_its_chats_and_a_sender_killed_in_the_middle_repeats_once_and_says_so(make_site):
    site = make_site(SUZENT_FAULTS="social.after_send:exit:once")
    with bot_api() as api:
        site.up()
        site.command("project", "create", "chat")
        create = ["channel", "create", "telegram", "--driver", "telegram", "--secret-from-stdin", "--url", api.url]
        subprocess.run([sys.executable, "manage.py", *create], cwd=ROOT, env=site.environment, input=TOKEN, text=True, check=True)
        site.command("channel", "allow", "telegram", "42")
        api.says("Hello")
        site.wait_for(lambda: api.texts == ["ok: Hello", f"{REPEAT}ok: Hello"], within=90)
        token = site.command("token", "create", "--project", "chat")["token"]
        site.wait_until_delivered(site.send(token, "social-telegram-42", "Tell her."), within=30)
        site.wait_for(lambda: api.texts[2:] == ["ok: Tell her."], within=30)
    assert answers(site) == ["ok: Hello", "ok: Tell her."]


def answers(site):
    return [text for (text,) in site.rows("SELECT text FROM sessions_app_transcriptentry WHERE role = 'assistant' ORDER BY id")]
