from pathlib import Path

import pytest

from memory_tasks import Settings, SettingsError
from memory_tasks.completers import load_completer
from memory_tasks.completers.offline import complete_offline
from memory_tasks.embedders import load_embedder
from memory_tasks.stores import load_long_term


def test_the_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_TASKS_RECENT_TURNS", "3")
    monkeypatch.setenv("MEMORY_TASKS_KEYWORDS", '["ping", "pong"]')
    assert Settings.load().recent_turns == 3
    assert Settings.load().keywords == ("ping", "pong")
    assert Settings.load(recent_turns=5).recent_turns == 5


def test_the_broker_is_redis_unless_another_is_given() -> None:
    assert Settings.load(redis_url="redis://x/1").broker == "redis://x/1"
    assert Settings.load(broker_url="amqp://y").broker == "amqp://y"


def test_an_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_TASKS_COMPLETR", "openai")
    with pytest.raises(SettingsError, match="did you mean MEMORY_TASKS_COMPLETER"):
        Settings.load()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"recent_turns": "many"}, "recent_turns"),
        ({"redis_url": "localhost"}, "redis_url"),
        ({"prefix": "a{b}"}, "prefix"),
        ({"max_turns": 0}, "max_turns"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Settings.load(**wrong)


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ("completion_timeout", "visibility_timeout", {"completion_timeout": 600}),
        ("step_timeout", "visibility_timeout", {"step_timeout": 700}),
        ("retry_cap", "visibility_timeout", {"retry_cap": 600}),
        ("visibility_timeout", "result_ttl", {"result_ttl": 600}),
        ("retry_base", "retry_cap", {"retry_base": 100}),
        ("recent_turns", "max_turns", {"recent_turns": 300}),
    ],
)
def test_an_unsafe_combination_is_refused_with_both_names(first: str, second: str, values: dict[str, float]) -> None:
    with pytest.raises(SettingsError) as failure:
        Settings.load(**values)
    assert first in str(failure.value)
    assert second in str(failure.value)


def test_a_key_is_never_shown() -> None:
    settings = Settings.load(openai_api_key="very-secret")
    assert "very-secret" not in repr(settings) + settings.model_dump_json()


def test_parts_are_found_by_name() -> None:
    assert load_completer(Settings.load()) is complete_offline
    named = Settings.load(completer="memory_tasks.completers.offline:complete_offline")
    assert load_completer(named) is complete_offline
    assert load_embedder(Settings.load(embedder="none")) is None


@pytest.mark.parametrize(
    ("setting", "value", "load"),
    [
        ("completer", "gpt", load_completer),
        ("completer", "no_such_module:f", load_completer),
        ("completer", "memory_tasks.models:nothing", load_completer),
        ("embedder", "bert", load_embedder),
        ("embedder", "no_such_module:f", load_embedder),
        ("long_term_url", "mysql:///x", load_long_term),
        ("long_term_url", "sqlite:///", load_long_term),
        ("long_term_url", "no_such_module:f", load_long_term),
    ],
)
def test_an_unknown_part_names_its_setting(setting: str, value: str, load: object) -> None:
    assert callable(load)
    with pytest.raises(SettingsError, match=f"MEMORY_TASKS_{setting.upper()}"):
        load(Settings.load(**{setting: value}))


def test_openai_without_a_key_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        load_completer(Settings.load(completer="openai"))


def test_the_readme_has_every_setting() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    rows = [
        f"| `{name.removeprefix('MEMORY_TASKS_')}` | {f'`{default}`' if default else ''} | {meaning} |"
        for name, default, meaning in Settings.documented()
    ]
    assert [row for row in rows if row not in readme] == [], "put these lines into the README's table"


def test_compose_passes_every_setting_on() -> None:
    compose = (Path(__file__).parents[2] / "compose.yaml").read_text()
    ours = {name for name, _, _ in Settings.documented()} - {
        f"MEMORY_TASKS_OPENAI_{name}" for name in ("BASE_URL", "API_KEY")
    }
    assert {name for name in ours if f"    {name}:" not in compose} == set()
