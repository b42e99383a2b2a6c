"""What the demo says when it cannot play."""

import io

from suzent_site.demo import play


def test_a_server_that_does_not_answer_is_one_sentence(transactional_db):
    out = io.StringIO()
    assert play("http://127.0.0.1:9", out) is False
    assert out.getvalue().startswith("\nThe demo stops here. http://127.0.0.1:9/api/sessions?limit=50 cannot be reached")
    assert "Traceback" not in out.getvalue()
