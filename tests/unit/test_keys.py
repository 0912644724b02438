from hypothesis import given
from hypothesis import strategies as st

from memory_tasks import Scope
from memory_tasks.keys import Keys, parse_scope_tag, parse_turn_tag, scope_tag

IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30).filter(
    lambda text: bool(text.strip())
)


@given(IDS, IDS, IDS)
def test_a_tag_can_be_turned_back_and_has_no_special_characters(user: str, conversation: str, turn: str) -> None:
    scope = Scope(user_id=user, conversation_id=conversation)
    assert parse_scope_tag(scope_tag(scope)) == scope
    keys = Keys("app").turn(scope, turn)
    assert parse_turn_tag(keys.tag) == (scope, turn)
    assert not set("{}* []?\\") & set(keys.tag)


@given(st.lists(st.tuples(IDS, IDS), min_size=2, max_size=2, unique=True))
def test_two_scopes_never_share_a_key(pairs: list[tuple[str, str]]) -> None:
    first, second = (Keys("app").scope(Scope(user_id=u, conversation_id=c)) for u, c in pairs)
    assert not {first.turns, first.mailbox, first.scope, first.turn_ids} & {
        second.turns, second.mailbox, second.scope, second.turn_ids,
    }  # fmt: skip


def test_all_keys_of_a_user_lie_in_one_slot() -> None:
    keys = Keys("app").turn(Scope(user_id="ann", conversation_id="c1"), "t1")
    names = [keys.entry, keys.events, keys.scope.turns, keys.scope.mailbox, keys.scope.shard.due, keys.scope.shard.dead]
    assert len({name[name.index("{") : name.index("}") + 1] for name in names}) == 1
    assert len({shard.sweep for shard in Keys("app").shards()}) == 64
