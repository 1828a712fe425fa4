import json

import pytest
import structlog

from federator.errors import InvalidInput
from federator.observability.logs import configure_logging


def test_json_logs_go_to_stderr_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    try:
        log = structlog.get_logger("test")
        log.debug("too fine")
        log.info("cluster changed state", member_cluster="eu-1", state="LIVE")
    finally:
        structlog.reset_defaults()
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["member_cluster"], entry["level"]) == ("cluster changed state", "eu-1", "info")


@pytest.mark.parametrize(
    ("level", "log_format", "field"), [("loud", "json", "log level"), ("info", "xml", "log format")]
)
def test_unknown_settings_are_refused(level: str, log_format: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        configure_logging(level, log_format)
    assert caught.value.field == field


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_shows_no_local_variables(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", log_format)

    def fail(password: str) -> None:
        raise RuntimeError(f"no access, {len(password)} characters")

    try:
        fail("hunter" + "2" * 3)
    except RuntimeError:
        structlog.get_logger("test").exception("it failed")
    finally:
        structlog.reset_defaults()
    _, err = capsys.readouterr()
    assert "no access" in err
    assert "hunter222" not in err
