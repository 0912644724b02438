"""The names of everything in Redis.

A user belongs to one of 64 shards. All keys of a shard carry one hash tag, so that a script can change a
turn, its conversation and the shard's indexes in one step, on a Cluster too. The number of shards is part of
the stored format: another number would look for the old keys in the wrong place.
"""

from dataclasses import dataclass
from urllib.parse import quote, unquote
from zlib import crc32

from memory_tasks.models import Scope

SHARDS = 64


def encode(value: str) -> str:
    """Percent-encode everything but letters, digits and `_.-~`: reversible, so two ids never give one key."""
    return quote(value, safe="")


def scope_tag(scope: Scope) -> str:
    """The scope as one word that can be turned back.

    Example:
        >>> scope_tag(Scope(user_id="a", conversation_id="b:c"))
        'a:b%3Ac'
    """
    return f"{encode(scope.user_id)}:{encode(scope.conversation_id)}"


def parse_scope_tag(tag: str) -> Scope:
    """The scope that a `scope_tag` was made of."""
    user, conversation = tag.split(":")
    return Scope(user_id=unquote(user), conversation_id=unquote(conversation))


def parse_turn_tag(tag: str) -> tuple[Scope, str]:
    """The scope and turn id that the tag of `TurnKeys` was made of."""
    scope, _, turn = tag.rpartition(":")
    return parse_scope_tag(scope), unquote(turn)


def is_turn_tag(tag: str) -> bool:
    """Whether it is one, and not something that a stranger has written there."""
    try:
        scope, turn_id = parse_turn_tag(tag)
    except ValueError:
        return False
    return f"{scope_tag(scope)}:{encode(turn_id)}" == tag


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The indexes of one shard."""

    base: str

    @property
    def sweep(self) -> str:
        """Sorted set: turn tag, by the time in ms at which the turn needs attention."""
        return f"{self.base}:sweep"

    @property
    def dead(self) -> str:
        """Sorted set: tag of each dead letter, by the time in ms at which it failed."""
        return f"{self.base}:dead"

    @property
    def due(self) -> str:
        """Sorted set: tag of each scope with turns in working memory, by the time in ms at which to promote."""
        return f"{self.base}:due"

    @property
    def oldest(self) -> str:
        """Sorted set: tag of each scope with turns in working memory, by the time in ms its oldest was appended."""
        return f"{self.base}:oldest"

    @property
    def dropped(self) -> str:
        """Number: turns that were dropped because too many waited for promotion."""
        return f"{self.base}:dropped"

    def turn(self, tag: str) -> "TurnKeys":
        """The keys of the turn behind one of the tags in these indexes."""
        return TurnKeys(ScopeKeys(self, tag.rpartition(":")[0]), tag)


@dataclass(frozen=True, slots=True)
class UserKeys:
    """The keys of one user."""

    shard: ShardKeys
    tag: str

    @property
    def conversations(self) -> str:
        """Sorted set: tag of each conversation with anything in Redis, by the time in ms it is gone, or +inf."""
        return f"{self.shard.base}:user:{self.tag}"

    @property
    def writers(self) -> str:
        """Sorted set: scope tag and token of each write into long-term memory that runs, by the end of its lease."""
        return f"{self.shard.base}:writers:{self.tag}"


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """The keys of one conversation."""

    shard: ShardKeys
    tag: str

    @property
    def user(self) -> "UserKeys":
        """The keys of the user the conversation belongs to."""
        return UserKeys(self.shard, self.tag.partition(":")[0])

    @property
    def entries(self) -> str:
        """Sorted set: encoded id of each turn in the ledger, by the time in ms its entry expires, or +inf."""
        return f"{self.shard.base}:entries:{self.tag}"

    @property
    def scope(self) -> str:
        """Hash: the active turn."""
        return f"{self.shard.base}:scope:{self.tag}"

    @property
    def mailbox(self) -> str:
        """List: tag and epoch of the turns that wait, the next one first."""
        return f"{self.shard.base}:mail:{self.tag}"

    @property
    def turns(self) -> str:
        """List: working memory, oldest first."""
        return f"{self.shard.base}:turns:{self.tag}"

    @property
    def turn_ids(self) -> str:
        """Set: ids of the turns in working memory."""
        return f"{self.shard.base}:ids:{self.tag}"


@dataclass(frozen=True, slots=True)
class TurnKeys:
    """The keys of one turn, and those of its conversation."""

    scope: ScopeKeys
    tag: str

    @property
    def entry(self) -> str:
        """Hash: the ledger's entry."""
        return f"{self.scope.shard.base}:turn:{self.tag}"

    @property
    def events(self) -> str:
        """Stream: chunks of the answer and what became of it."""
        return f"{self.scope.shard.base}:events:{self.tag}"


class Keys:
    """Builds keys under a prefix.

    Example:
        >>> Keys("app").scope(Scope(user_id="ann", conversation_id="c1")).turns
        'app:{1d}:turns:ann:c1'
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @property
    def swept(self) -> str:
        """String that exists as long as the sweep runs."""
        return f"{self.prefix}:swept"

    def sweeps(self, minute: int) -> str:
        """Number: sweeps that ran in a minute since 1970."""
        return f"{self.prefix}:sweeps:{minute}"

    @property
    def carrier(self) -> str:
        """String: the key that encrypts answers which travel in a message because the ledger can't be written."""
        return f"{self.prefix}:carrier"

    def shard(self, number: int) -> ShardKeys:
        """The indexes of shard 0 to 63."""
        return ShardKeys(f"{self.prefix}:{{{number:02x}}}")

    def shards(self) -> list[ShardKeys]:
        """All shards."""
        return [self.shard(number) for number in range(SHARDS)]

    def scope(self, scope: Scope) -> ScopeKeys:
        """The keys of a conversation."""
        shard = self.shard(crc32(scope.user_id.encode()) % SHARDS)
        return ScopeKeys(shard, scope_tag(scope))

    def user(self, user_id: str) -> UserKeys:
        """The keys of a user."""
        return self.scope(Scope(user_id=user_id, conversation_id="-")).user

    def turn(self, scope: Scope, turn_id: str) -> TurnKeys:
        """The keys of a turn."""
        keys = self.scope(scope)
        return TurnKeys(keys, f"{keys.tag}:{encode(turn_id)}")
