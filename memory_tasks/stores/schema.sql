-- Long-term memory in one SQLite file, format 1.
--
-- Rows are clustered by scope: pk = scope << 31 | sequence. What a search reads of one scope lies together, and
-- what it costs does not depend on how many other scopes the file holds.

create table meta (
  key text primary key,
  value text not null
) without rowid;

create table scopes (
  -- Never used again after a forget, so that no reader takes a new scope for an old one.
  scope integer primary key autoincrement,
  user_id text not null,
  conversation_id text not null,
  -- Sequence number of the next turn; it only grows, so it says which rows a reader has not seen.
  next_seq integer not null default 0,
  -- Grows with every change other than a turn added at the end; it says that a reader must start anew.
  revision integer not null default 0,
  unique (user_id, conversation_id)
);

create table turns (
  pk integer primary key,
  scope integer not null,
  turn_id text not null,
  user_message text not null,
  assistant_message text not null,
  created_at integer not null, -- microseconds since 1970
  importance real,
  remember integer not null,
  unique (scope, turn_id)
);

-- What ranking needs of each turn, apart from the texts, so that reading it for a whole scope is cheap.
create table features (
  pk integer primary key,
  length integer not null, -- terms
  said_at integer not null, -- microseconds since 1970
  vector blob -- float32, little-endian; null without an embedder
);

-- Which turns have a term. Statistics are counted inside the scope: one user's words never change another's scores.
create table postings (
  scope integer not null,
  term text not null,
  pk integer not null,
  count integer not null,
  primary key (scope, term, pk)
) without rowid;
