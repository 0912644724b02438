-- Long-term memory in PostgreSQL with pgvector, format 1.
--
-- Partitioned by the hash of the user: all that a search reads of a user lies in one partition. Keys are digests,
-- because an index row has no room for ids of 512 characters; the ids themselves stand beside them.

create sequence scope_numbers;

create table scopes (
  user_key bytea not null,
  conversation_key bytea not null,
  user_id text not null,
  conversation_id text not null,
  -- Never used again after a forget, so that no reader takes a new scope for an old one.
  scope bigint not null default nextval('scope_numbers'),
  -- Sequence number of the next turn; it only grows, so it says which rows a reader has not seen.
  next_seq bigint not null default 0,
  -- Grows with every change other than a turn added at the end; it says that a reader must start anew.
  revision bigint not null default 0,
  primary key (user_key, conversation_key)
) partition by hash (user_key);

create table turns (
  user_key bytea not null,
  scope bigint not null,
  pk bigint not null, -- scope << 31 | sequence
  turn_key bytea not null,
  turn_id text not null,
  user_message text not null,
  assistant_message text not null,
  created_at bigint not null, -- microseconds since 1970
  importance double precision,
  remember boolean not null,
  length integer not null, -- terms
  vector vector, -- null without an embedder
  primary key (user_key, pk),
  unique (user_key, scope, turn_key)
) partition by hash (user_key);

-- Which turns have a term. Statistics are counted inside the scope: one user's words never change another's scores.
create table postings (
  user_key bytea not null,
  scope bigint not null,
  term text not null,
  pk bigint not null,
  count integer not null,
  primary key (user_key, scope, term, pk)
) partition by hash (user_key);

create index postings_by_turn on postings (user_key, pk);
